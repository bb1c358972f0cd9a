"""Which tokens carry the covariance and the SCOPE score of a step."""

from entrostat.storage.merged import JOIN, VALID

SCOPE = "case when t.advantage is not null then exp(t.logp) * (1 - exp(t.logp)) * greatest(t.advantage, 0) end"
"""SCOPE Eq. 11, of a row of ``raw.token_row``."""
_OF_STEP = "(partition by run, step)"

TOP_TOKEN_COLUMNS = {
    "seq": "Response, as in the view sequence.",
    "pos": "Position in the response, from 0.",
    "token_id": "The sampled token.",
    "text": "Its text, where the run keeps texts.",
    "logp": "Its log-prob, in nats.",
    "advantage": "The advantage it was trained with.",
    "cov": "Its covariance share (logp - mean logp)(A - mean A), in nats.",
    "scope": "p(1-p)max(A,0): how strongly an update redistributes its probability.",
    "share_cov": "Of the kept rows' sum of |cov|, its part, with its sign.",
    "share_scope": "Of the kept rows' sum of scope, its part.",
    "rank_cov": "1 for the highest cov of the step's kept rows.",
    "rank_scope": "1 for the highest scope.",
}
TOP_TOKEN = f"""
select run, step, process_rank, seq, pos, token_id, text, logp, advantage, cov, scope,
    cov / nullif(sum(abs(cov)) over {_OF_STEP}, 0) as share_cov,
    scope / nullif(sum(scope) over {_OF_STEP}, 0) as share_scope,
    row_number() over (partition by run, step order by cov desc nulls last, process_rank, seq, pos) as rank_cov,
    row_number() over (partition by run, step order by scope desc nulls last, process_rank, seq, pos) as rank_scope
from (
    select s.run_id as run, t.step, s.rank as process_rank, t.seq, t.pos, t.token_id, t.text, t.logp, t.advantage,
        t.cov::double as cov, ({SCOPE})::double as scope
    from raw.token_row t {JOIN} where {VALID}
)
"""

TOKEN_MASS_COLUMNS = {
    "token_id": "The token of the vocabulary.",
    "text": "Its text, where the run keeps texts.",
    "num_rows": "Kept rows of it.",
    "count_estimate": "Estimate of how often it was sampled in the step: sum of 1 / prob.",
    "cov_mass": "Estimate of its sum of cov over the step's tokens: sum of cov / prob, in nats.",
    "scope_mass": "Estimate of its sum of scope: sum of scope / prob.",
    "share_cov": "cov_mass as a part of the sum of |cov_mass| over the step's tokens, with its sign.",
    "share_scope": "scope_mass as a part of the step's sum.",
}
TOKEN_MASS = f"""
select run, step, token_id, text, num_rows, count_estimate, cov_mass, scope_mass,
    cov_mass / nullif(sum(abs(cov_mass)) over {_OF_STEP}, 0) as share_cov,
    scope_mass / nullif(sum(scope_mass) over {_OF_STEP}, 0) as share_scope
from (
    select s.run_id as run, t.step, t.token_id, any_value(t.text) as text, count(*) as num_rows,
        sum(1 / t.prob::double) as count_estimate, sum(t.cov / t.prob::double) as cov_mass,
        sum({SCOPE} / t.prob::double) as scope_mass
    from raw.token_row t {JOIN} where {VALID} group by s.run_id, t.step, t.token_id
)
"""
