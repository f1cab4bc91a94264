// Package parking is about the VMs on which disks wait while their own VM is replaced, and on
// which old system disks are kept. A [Parking] carries a [Record] in its description, from which
// an interrupted replacement is finished or undone, and a [Memory] of what was there before.
package parking
