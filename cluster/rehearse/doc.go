// Package rehearse tries out what nodes will boot before a roll takes any of them out: on each
// host, for each kind of firmware, a scratch VM made like the nodes' boots the ISO, or a disk made
// from the disk image, to maintenance mode, is compared with the build, and is deleted. Its main
// type is [Rehearser]; [Pruner] deletes what a killed run has left.
package rehearse
