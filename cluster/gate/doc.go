// Package gate is the last look before a node is taken out: [Gate] asks again for all that
// the plan was made from, and refuses where the cluster would lose data, quorum or a name.
// [Gate.Check] is the whole of it; each Require… is one thing that must hold.
package gate
