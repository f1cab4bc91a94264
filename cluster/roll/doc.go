// Package roll carries a plan out. The main type is [Roller]: [Roller.Steps] derives the
// step tree of a plan, and recreate.go has the order of the steps of a node, as one literal.
// Each noun of that (power, eviction, bring-up, health, …) is a small type over a
// [rolling.Node]. What must hold before a node is touched is in package gate.
package roll
