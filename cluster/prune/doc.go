// Package prune frees old system disks and parking VMs that nobody needs any more. [JudgeParked]
// says which, and why each of the others stays; [ParkingPruner] removes them.
package prune
