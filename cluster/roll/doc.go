// Package roll carries out a plan. The main type is [Roller]: [Roller.Steps] derives the step tree of a plan, and
// life.go has the order of the steps of a node. The bodies of the steps are in a file for each topic (power,
// eviction, bring-up, health, …). What must hold before a node is touched is in package gate.
package roll
