# Looking inside: token tables of the runs that the study's `diagnostics` names, and the papers' claims measured on them.
from rlvr.diagnostics.claims.base import claim_names
from rlvr.study.diagnosed import ClaimJobs

CLAIM_JOBS = ClaimJobs(PLAN)


# Token tables, and the papers' claims measured on them: `snakemake phenomena`.
rule phenomena:
    input:
        "results/tables/phenomena.md",
        CLAIM_JOBS.figures(".png"),
        "results/phenomena.html",


rule token_table:
    input:
        run="results/runs/{run}/manifest.json",
    output:
        table="results/diagnostics/{run}/tokens.parquet",
        manifest="results/diagnostics/{run}/manifest.json",
    log:
        "results/logs/diagnostics/{run}.tokens.log",
    threads: PLAN.training_threads
    params:
        steps=CLAIM_JOBS.settings.get("steps", []),
        version=given(CLAIM_JOBS.version),
    shell:
        "python -m rlvr tokens replay results/runs/{wildcards.run}/run.json --steps {params.steps}"
        f" --threads {PLAN.training_threads} --device {PLAN.execution['device']}"
        f" --grading-workers {PLAN.execution['grading_workers']}"
        " --out results/diagnostics/{wildcards.run} > {log:q} 2>&1"


rule probes:
    input:
        table="results/diagnostics/{run}/manifest.json",
    output:
        probes="results/diagnostics/{run}/probes.parquet",
        manifest="results/diagnostics/{run}/probes.manifest.json",
    log:
        "results/logs/diagnostics/{run}.probes.log",
    params:
        version=given(CLAIM_JOBS.version),
    shell:
        "python -m rlvr tokens probe results/diagnostics/{wildcards.run} > {log:q} 2>&1"


rule phenomenon:
    input:
        given(CLAIM_JOBS.inputs),
        code=given(CLAIM_JOBS.code),
    output:
        multiext("results/phenomena/{claim}", ".json", ".parquet", ".manifest.json"),
        report(
            "results/figures/phenomena/{claim}.png",
            caption="../report/phenomenon.rst",
            category="Claims of the papers",
        ),
        multiext("results/figures/phenomena/{claim}", ".svg", ".pdf", ".manifest.json"),
    log:
        "results/logs/phenomena/{claim}.log",
    wildcard_constraints:
        claim=pattern(claim_names()),
    params:
        options=given(CLAIM_JOBS.options),
    shell:
        "python -m rlvr claim {wildcards.claim} {params.options:q}"
        " --results results --out results/phenomena/{wildcards.claim}"
        " --figure results/figures/phenomena/{wildcards.claim} > {log:q} 2>&1"


rule table_phenomena:
    input:
        findings=CLAIM_JOBS.findings(),
        code=code_of("rlvr.diagnostics.claims.findings"),
    output:
        report("results/tables/phenomena.md", caption="../report/phenomena.rst", category="Tables"),
        multiext("results/tables/phenomena", ".csv", ".manifest.json"),
    log:
        "results/logs/tables/phenomena.log",
    params:
        note=SHOWN.evidence,
        left_out=CLAIM_JOBS.left_out,
    shell:
        "python -m rlvr stage table phenomena --findings {input.findings:q} --figures ../figures/phenomena"
        " --note {params.note:q} {params.left_out:q} --out results/tables/phenomena > {log:q} 2>&1"


# To read: the first seed's rollouts at every kept step, token by token.
rule rollouts_page:
    input:
        table="results/diagnostics/{run}/manifest.json",
        problems="results/problems/train/problems.jsonl",
        code=code_of("rlvr.diagnostics.tokens.view"),
        template=as_input(REPOSITORY / "rlvr/diagnostics/templates/coloured_text.html.jinja"),
    output:
        page=report("results/diagnostics/{run}/step-{step}.html", category="Rollouts, token by token"),
        manifest="results/diagnostics/{run}/step-{step}.manifest.json",
    log:
        "results/logs/diagnostics/{run}.step-{step}.log",
    wildcard_constraints:
        step="[0-9]+",
    shell:
        "python -m rlvr tokens show results/diagnostics/{wildcards.run} --step {wildcards.step}"
        " --problem-texts {input.problems:q} --out {output.page:q} > {log:q} 2>&1"


rule page_phenomena:
    input:
        findings=CLAIM_JOBS.findings(),
        figures=CLAIM_JOBS.figures(".svg"),
        rollouts=given(CLAIM_JOBS.rollout_pages),
        code=code_of("rlvr.report.pages"),
        template=page_templates("sections.html.jinja"),
    output:
        page=report("results/phenomena.html", caption="../report/phenomena.rst", category="Study"),
        manifest="results/phenomena.manifest.json",
    log:
        "results/logs/phenomena.log",
    params:
        note=SHOWN.evidence,
        left_out=CLAIM_JOBS.left_out,
    shell:
        "python -m rlvr stage page phenomena --findings {input.findings:q} --figures results/figures/phenomena"
        " --rollouts {input.rollouts:q} --note {params.note:q} {params.left_out:q}"
        " --out {output.page:q} > {log:q} 2>&1"
