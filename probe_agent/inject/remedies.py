"""What helps in a container, said in every refusal that a container can be the cause of."""

from __future__ import annotations

__all__ = ["CAPABILITY", "PTRACE_CALL"]

#: Rights that containers come without.
CAPABILITY = (
    "in Docker: docker run --cap-add=SYS_PTRACE (from a container beside it also --pid=container:NAME);"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE], for a sidecar shareProcessNamespace: true too"
)
#: The system call itself, which the seccomp profile of a container may forbid.
PTRACE_CALL = (
    "in Docker: docker run --cap-add=SYS_PTRACE, whose profile allows it, or --security-opt seccomp=unconfined;"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE] and seccompProfile.type: Unconfined;"
    " or attach from the host"
)
