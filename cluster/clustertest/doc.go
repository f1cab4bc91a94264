// Package clustertest has the small clusters that the tests of cluster and of its rooms share:
// [World] is three nodes as they are observed, of which one is stale, and [Park] a parking VM.
package clustertest
