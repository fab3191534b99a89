"""Words that mark answers and begin tasks, in the languages in which models answer: closed lists for every kind."""

ANSWER_WORDS = (
    "answer", "réponse", "respuesta", "antwort", "risposta", "resposta", "antwoord", "odpowiedź", "cevap", "jawaban",
    "svar", "jibu", "vastaus", "đáp án", "đáp số", "ответ", "відповідь", "odpověď", "απάντηση", "答案", "答え", "回答",
    "解答", "正解", "정답", "답", "คำตอบ", "উত্তর", "సమాధానం", "उत्तर", "الجواب", "الإجابة", "پاسخ", "תשובה",
)  # fmt: skip
"""The word for "answer", in small letters."""

COPULAS = (
    "is", "are", "was", "est", "ist", "lautet", "es", "è", "é", "são", "jest", "adalah", "ialah", "är",
    "là", "ni", "είναι", "—", "是", "为", "為", "は", "은", "는", "คือ", "হল", "হলো", "है", "هو", "هي",
)  # fmt: skip
"""The word between "answer" and the answer."""

TASK_WORDS = (
    "problem", "question", "exercise", "task", "instruction", "prompt", "problème", "exercice", "problema", "pregunta",
    "ejercicio", "aufgabe", "frage", "übung", "domanda", "esercizio", "pergunta", "questão", "exercício", "vraag",
    "opgave", "zadanie", "pytanie", "soru", "soal", "pertanyaan", "uppgift", "fråga", "swali", "câu hỏi", "bài toán",
    "задача", "задание", "вопрос", "问题", "問題", "题目", "題目",
    "质问", "質問", "例题", "练习", "문제", "질문", "โจทย์", "คำถาม",
    "প্রশ্ন", "ప్రశ్న", "प्रश्न", "سؤال",
)  # fmt: skip
"""The words for a task in a heading, in small letters."""

ORDERS = ("next", "new", "another", "second", "third", "bonus", "follow-up")
"""The words that may stand before the word for a task."""

SPEAKERS = ("human", "user", "assistant", "system", "student", "teacher", "q")
"""The names before a colon with which a turn of a conversation begins."""


def small_letters(text: str) -> str:
    """The text in small letters, of the same length: the one letter that would become two is replaced before."""
    return text.replace("\u0130", "i").lower()
