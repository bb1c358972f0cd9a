"""DLC: rollouts drawn from the policy's logits minus mu times those of a memory of past rollouts (Over-sharpening).

f~ = f_theta - mu * f_phi and pi_sample = softmax(f~), so what was drawn often is drawn less often (Sec. 3.2;
Algorithm 1, lines 5, 6 and 22). f_phi is a language model trained by cross-entropy on the sampled responses after every
step. It changes who samples, not the loss, so there is no transform to make: ``trainer_adapters/sampling`` acts.
"""

from pydantic import Field

from entrostat.interventions.transform import Method, Params, Phase


class DlcParams(Params):
    """The memory's weight. The paper asks for mu >= 0 and runs mu = 0.5.

    **Decision**: at most 2. At 1 a memory that has become the policy flattens it to uniform; beyond, it is turned
    upside down.
    """

    mu: float = Field(0.5, ge=0.0, le=2.0, description="Weight of the memory's logits; 0 samples from the policy.")


METHOD = Method("dlc", Phase.sampling, DlcParams, None, "Over-sharpening Sec. 3.2, Alg. 1", excludes={})
