// Package restore makes etcd of a cluster's only control plane anew from a snapshot. [FindTarget]
// finds that control plane and refuses where there may be others; [Restore] has the steps.
package restore
