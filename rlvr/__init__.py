"""Methods, engines and studies: how a policy is trained with verifiable rewards, and how that is described."""
