package cluster

// BootFailure is the policy for a node that does not come back from an in-place upgrade.
type BootFailure string

// The policies. The node's own rollback needs an API that answers; a reimage does not.
const (
	StopOnBootFailure     BootFailure = "stop"
	RollbackOnBootFailure BootFailure = "rollback"
	ReimageOnBootFailure  BootFailure = "reimage"
)
