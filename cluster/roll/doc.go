// Package roll carries a plan out, node by node, so that a cluster keeps working meanwhile.
// [Roller] makes a tree of steps of a plan. What happens to one node, and in which order, is in
// recreate.go; each part of it (gate, eviction, etcd, power, bring-up, health …) is a small type
// over the node. What must hold before a node is touched is in gate.go.
package roll
