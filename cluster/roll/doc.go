// Package roll carries out a plan. The main type is [Roller]: [Roller.Steps] derives the step tree of a plan, and
// life.go has the order of the steps of a node. The bodies of the steps are in a file for each topic (power,
// eviction, bring-up, health, …). What must hold before a node is touched is [rolling.Node.CheckGate].
//
// [Rehearser] first tries out what nodes will boot: on each host, for each kind of firmware, a scratch VM made like
// the nodes' boots the ISO, or a disk made from the disk image, to maintenance mode, is compared with the build, and
// is deleted; [ScratchPruner] deletes what a killed run has left. [HookCall] runs the user's commands at a point of a
// run. Before a node goes, and after it is back, the volumes that storage systems keep on several nodes are waited
// for (healing.go).
package roll
