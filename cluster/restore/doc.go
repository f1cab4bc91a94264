// Package restore makes a machine begin an etcd of its own. [First] is the step that does so for the
// first control plane of a new cluster. [Restore] has the steps that give the only control plane of a
// cluster its etcd back from a snapshot; [FindTarget] finds it, and refuses where there may be others.
package restore
