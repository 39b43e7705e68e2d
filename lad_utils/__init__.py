"""LAD: score RL task sets from base-model rollouts, before the first gradient step."""
