// Package etcd says how the members of etcd stand, as the control planes tell it. [Look] asks
// them and makes a [View]; whether a member may be taken out is read from that.
package etcd
