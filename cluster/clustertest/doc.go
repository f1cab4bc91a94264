// Package clustertest has what the tests of cluster and of its rooms share: [InSync] is a machine
// with the build of [WantedBuild], and [Park] a parking VM.
package clustertest
