"""What a text gives as its answer, in words: the same rules for numbers and for options.

A line is a text; "~" stands for the end of a line.
"""

import pytest

from evals.grading import Case, Kind
from evals.grading.extraction import extract_answer
from evals.grading.pool import examine

GIVEN = r"""
The answer has to be 18.
The answer is 18, because no other value fits.
The answer is 18, as x cannot be negative.
If we add them, we see that the answer is 18.
The answer is surely 18.
Answer: 18~~Student answer: 12
There is no doubt that the answer is 18.
I have no doubt the answer is 18.
Since 17 is not prime, the answer is 18.
It is not 17, so the answer is 18.
So here's the answer: 18
It can't be denied that the answer is 18.
The answer, after rounding, is 18.
The answer is not 12 but 18
The answer isn't 12 but 18.
Answer: 18, rather than 12
Answer: not 12 but 18
The value of the final answer is 18
After simplification the answer is 18.
This is not hard, and the answer is 18.
Answer:~> 18
The problem's answer is 18.
> Answer: 18
\boxed{\text{The answer is }18}
\boxed{\text{The side of the square is }18}
\boxed{\text{Total: }18}
Hence the required answer is 18
We can conclude that the answer is 18.
"""

NOT_GIVEN = r"""
My first answer was 18.
The answer plus one is 18.
The answer squared is 18.
An upper bound for the answer is 18.
Maybe the answer is 18.
Answer: 12~~Student answer: 18
The wrong answer is 18.
It is false that the answer is 18.
I disagree that the answer is 18.
Twice the answer is 18.
The square of the answer is 18.
The previous answer is 18.
Answer: I refuse. 18
The student's answer is 18.
Some would say the answer is 18.
Wrong answer: 18
Twice the answer: 18
La respuesta incorrecta es 18
The answer to a similar problem is 18
The incorrect answer: 18
It's a myth that the answer is 18.
Half the answer is 18
Previous answer: 18
It is not true that the answer is 18.
Answer: > 18
#### > 18
The answer is not 18.
The answer is not 18 but 12
Answer: 12, rather than 18
\boxed{\text{Twice the answer is }18}
\boxed{\text{An upper bound is }18}
\boxed{\text{The wrong answer is }18}
\boxed{\text{Half of it is }18}
\boxed{\text{A lower bound is }18}
\boxed{\text{The square of the answer is }18}
\boxed{\text{The previous answer was }18}
Answer: nobody knows. 18
Answer: hard to say! 18
I am not convinced that the answer is 18.
There is no reason to think the answer is 18.
No one believes the answer is 18.
If we forget the sign, the answer is 18.
"""

CHOOSES_B = r"""
The answer, then, is B.
The solution is B.
The only correct statement is B.
Answer: \(B\)
The answer is \(B\).
\[B\]
$B$
Answer: $B$
\boxed{b}
\boxed{(b)}
Answer: b
Answer: (b)
The correct answer is b.
The answer is (b).
<answer>b</answer>
<answer>(b)</answer>
Answer = B
Answer: ( B )
Final answer - B
Final answer — B
Final Answer: B
Ans: B
Ans. B
Ans: (B)
The answer turns out to be B.
It turns out to be B.
This leaves B.
This leaves us with B.
That leaves option B.
This leaves only B.
Leaving B.
So only B remains.
Only option B fits.
Only B works.
Only B is correct.
Only (B) matches.
Option B fits.
Option B is the only one that fits.
The total is 12 m (B).
The value is 12 (B).
It equals 5 J, option B.
B~~The reason is that the pressure rises.
B. The reason is that the pressure rises.
(B) The reason is that pressure rises.
B) because the pressure rises.
B because the pressure rises.
So D fails and B it is.
So B it is.
B it is.
Answer → (B)
Answer -> B
Answer => B
Answer: rules out C, leaving B
We can rule out A, C and D, leaving B.
Eliminating A, C, D leaves B.
The answer must be B.
The answer has to be B.
The answer should be B.
My answer: B
My answer is B.
I choose B.
I pick B.
I'd go with B.
I would go with B.
I'll go with B.
I'm going with option B.
I select (B).
I select option B.
We choose (B).
Choose B.
Select B.
So we pick B.
The best answer is B.
The best choice is B.
The right answer is B.
The correct choice is (B).
The correct option is B.
The correct letter is B.
Correct answer: B
Correct option: B
Correct choice: B.
Right answer: B
Choice: B
Option: B
Option B
Option B.
option (B)
Letter: B
B
B.
(B)
(B).
[B]
{B}
"B"
'B'
**B**
*B*
__B__
`B`
**Answer: B**
**Answer:** B
**Answer**: B
**Answer:** **B**
### Answer: B
### Answer~B
## Final Answer~~B
### Final Answer~**B**
Answer~B
Answer:~B
Answer:~~(B)
Answer: B.
Answer: B)
Answer: (B) 42
Answer: B. 42
Answer: B - 42
Answer: B: 42
Answer: Option B
Answer: option (B)
Answer: the option is B
Answer: [B]
Answer: "B"
Answer: **B**
Answer: \boxed{B}
Answer: \text{B}
Answer: $\text{B}$
Answer: $\boxed{B}$
Answer: \(\boxed{B}\)
ANSWER: B
answer: B
answer: b
answer B
Answer B
Answer is B
Answer is: B
The answer: B
The answer is B
The answer is: B
The answer is: (B)
The answer is option B.
The answer is choice B.
The answer is letter B.
The answer is **B**.
The answer is "B".
The answer is $\boxed{B}$.
The answer is $\textbf{(B)}$.
The answer is therefore B.
The answer is thus (B).
The answer is clearly B.
The answer would be B.
The answer will be B.
The answer here is B.
The answer to the question is B.
The final answer is B.
The final answer is (B).
Therefore, the answer is B.
Thus the answer is B.
Hence, answer: B.
Hence B.
Hence (B).
Therefore B.
Therefore, B.
So B.
So, B.
So the answer is B.
So it's B.
So it is B.
It's B.
It is B.
It must be B.
It has to be B.
That's B.
That is B.
This is option B.
This is answer B.
This corresponds to option B.
This corresponds to B.
which is option B.
which is (B).
, which is B.
This matches option B.
This matches B.
which matches (B).
The statement B is correct.
Statement B is true.
B is correct.
B is right.
B is the answer.
B is the correct answer.
B is the best answer.
B is the correct option.
Option B is correct.
Option B is the right choice.
(B) is correct.
(B) is the correct answer.
Choice B is correct.
Answer choice B is correct.
Answer B is correct.
Therefore option B is correct.
Therefore, B is correct.
We conclude that B is correct.
I believe the answer is B.
I think it is B.
I think B is correct.
I think it's (B).
I believe B.
My choice is B.
My final choice is B.
My pick: B
Verdict: B
Result: B
Solution: B
Final: B
Final choice: B
Conclusion: B
Correct: B
A: no. B: yes. C: no. D: no. Answer: B
A is wrong, B is correct, C is wrong.
The answer is not A but B.
The answer is B, not A.
The answer is B rather than A.
B, since the others fail.
Answer: B, because A is wrong.
Answer: B (not A)
\boxed{B}
\boxed{\text{B}}
\boxed{\textbf{B}}
\boxed{\mathrm{B}}
\boxed{(B)}
\boxed{\text{(B)}}
\boxed{B. 42}
\boxed{\text{Option B}}
\boxed{B)}
\boxed{B.}
\boxed{\textbf{(B)}\ 42}
$\boxed{\textbf{(B)}}$
\fbox{B}
<answer>B</answer>
<answer>(B)</answer>
<answer>Option B</answer>
<answer>B. 42</answer>
<answer>\boxed{B}</answer>
<final_answer>B</final_answer>
The answer is $(B)$.
The answer is \textbf{B}.
The answer is <b>B</b>.
Answer: <b>B</b>
Answer: *B*
The correct answer is option (B): 42.
The correct option is (B) 42.
The correct answer is: **B. 42**
**The correct answer is B.**
The correct answer is **B) 42**.
Hence the correct option is \(B\).
\(\boxed{B}\)
\[\boxed{\text{B}}\]
\[\text{B}\]
\(\textbf{(B)}\)
So, the correct answer is:~~**B**
So, the correct answer is:~~B. 42
Thus, the answer is~$$B$$
答案：B
答案是B。
选B。
故选：B
La respuesta es B.
La réponse est B.
Die Antwort ist B.
Ответ: B
Therefore, the correct choice would be (B).
I'm confident that the answer is B.
The only option that fits is B.
The only possible answer is B.
The remaining option is B.
The one that fits is B.
the closest is B.
The closest option is B.
By elimination, B.
By elimination: B
By process of elimination, the answer is B.
Let's go with B.
Final answer is B
FINAL ANSWER: B
The answer → B
answer=B
Answer:B
Answer:(B)
Answer: B~
"""

CHOOSES_NOT_B = r"""
The answer could be B.
Perhaps B is correct.
Some answer B.
Answer: B is the base
The answer is A, B, C or D.
The answer is A or B.
The answer is either A or B.
\boxed{A}\boxed{B}\boxed{C}\boxed{D}
\boxed{A} \boxed{B} \boxed{C} \boxed{D}
\boxed{A}, \boxed{B}
\boxed{A} and \boxed{B}
\boxed{A} or \boxed{B}
\boxed{A,B,C,D}
\boxed{ABCD}
\boxed{A\,B\,C\,D}
\boxed{A/B/C/D}
\boxed{A \text{ or } B}
A is correct, B is correct, C is correct, D is correct.
A is correct. B is correct. C is correct. D is correct.
A is correct and B is correct.
The answer is A and the answer is B.
The answer is A; the answer is B.
The answer is A, the answer is B.
Answer: A B C D
Answer: A, B, C, D
Answer: A/B/C/D
Answer: A|B|C|D
Answer: ABCD
Answer: A and B and C and D
Answer: A, B, C, D are all possible.
Answer: A, B, C or D, whichever is right.
The answer is A (or B).
The answer is A, or B, or C, or D.
The answer is one of A, B, C, D.
The answer is A? B? C? D?
Options: A, B, C, D.
A, B, C, D
A B C D
A. B. C. D.
A~B~C~D
(A) 1 (B) 2 (C) 3 (D) 4
A. 1~B. 2~C. 3~D. 4
Which of A, B, C, D is right?
I do not know whether it is A or B.
Is the answer B?
It is not B.
The answer is not B.
The answer is neither A nor B.
None of the above
B is wrong.
B is not the answer.
I can't confirm that the answer is B.
It is false that the answer is B.
Nobody would say the answer is B.
I disagree that the answer is B.
If B is correct, then A is wrong.
Let B be the magnetic field.
B = 5 T
B is the base of the triangle.
The field is B.
Let A be the area and B the base.
Answer: anything but B
Answer: not B
Answer: cannot be determined
Answer: B = 5
Answer: B^2
Answer: B-field
Answer: Be
Answer: a constant
A triangle has three sides.
a
The answer is a number.
The answer is a function of b.
The wrong answer is B.
The incorrect option is B.
The answer is A+B.
The answer is AB.
\boxed{AB}
\boxed{A+B}
\boxed{B=5}
\boxed{a+b}
\boxed{b^2}
\boxed{a=5}
<answer>A B</answer>
<answer>not A</answer>
<answer>A or B</answer>
<answer>A</answer><answer>B</answer><answer>C</answer><answer>D</answer>
Only A and B fit.
This leaves A and B.
This leaves B and C.
This leaves A or B.
A and B remain.
We choose A or B.
It is either B or C.
So A or B.
Either A or B is correct.
Both A and B are correct.
A, B and C are correct.
All of A, B, C, D are correct.
I would not choose B.
We eliminate B.
Rule out B.
Ruling out B.
Without B.
(B) is a distractor.
B looks tempting.
Some say B.
Many students choose B.
Someone answered B.
A common wrong answer is B.
One might think the answer is B.
Do not pick B.
Don't answer B.
The letter B appears twice.
Section B.
See part B.
Vitamin B.
Hepatitis B
Plan B.
Type B
Group A
Team B wins.
The point B lies on the line.
Angle B is 30 degrees.
Then D is the midpoint of BC.
Choose A, B, C or D.
"""


def _lines(block: str) -> list[str]:
    return [line.replace("~", "\n") for line in block.strip().split("\n")]


@pytest.mark.parametrize("text", _lines(GIVEN))
def test_an_answer_is_given(text: str) -> None:
    assert examine(Case(text, "18")).correct  # type: ignore[union-attr]


@pytest.mark.parametrize("text", _lines(NOT_GIVEN))
def test_an_answer_that_is_denied_or_of_another_is_not_given(text: str) -> None:
    verdict = examine(Case(text, "18"))
    assert not getattr(verdict, "correct", False)


@pytest.mark.parametrize("text", _lines(CHOOSES_B))
def test_an_option_is_chosen(text: str) -> None:
    assert extract_answer(text, Kind.CHOICE, truncated=False) == "B"


@pytest.mark.parametrize("text", _lines(CHOOSES_NOT_B))
def test_no_option_is_chosen(text: str) -> None:
    assert extract_answer(text, Kind.CHOICE, truncated=False) == "no_answer"
