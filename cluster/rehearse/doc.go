// Package rehearse tries boot ISOs out before a roll takes any node out: on each host, for
// each kind of firmware, a scratch VM made like the nodes' boots the ISO to maintenance
// mode, is compared with the build, and is deleted. Its main type is [Rehearser];
// [Pruner] deletes what a killed run has left.
package rehearse
