// Package claim keeps a cluster for one run at a time. [Claim] takes the mark, a VM that is never started or a
// Lease; [Held] is the mark once taken, which beats, and whose guards let no change through once it is lost.
package claim
