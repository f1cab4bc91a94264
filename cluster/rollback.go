package cluster

// PreviousLock is the way back that needs no kept disk. A lock is refused unless it is
// that of recast.yaml and of the schematics beside it.
const PreviousLock = "put the previous lock back, with what it is of (git checkout COMMIT -- recast.yaml recast.lock schematics/), and recast roll"
