// Package etcd says how the members of etcd stand, as the control planes tell it, and has the steps
// that begin and restore it. [Look] asks the control planes and makes a [View]; whether a member may be
// taken out is read from that. [Begin] makes a machine begin an etcd of its own. [Restore] has the steps
// that give the only control plane of a cluster its etcd back from a snapshot; [FindTarget] finds that
// machine, and refuses where there may be others.
package etcd
