package pipeline

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
)

// storehouse is a Proxmox cluster of which only the VMs are read.
type storehouse struct {
	datacentre
	cluster.Access
	images.Store
}

func TestISOHosts(t *testing.T) {
	t.Parallel()
	vm := func(id cluster.VMID, host string) cluster.VM {
		return cluster.VM{ID: id, Host: host, Config: map[string]string{"smbios1": fmt.Sprintf("uuid=u-%d", id)}}
	}
	open := parkingVM(t, parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b", VMID: 111, UUID: "u-111", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}, nil)
	done := parkingVM(t, parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: "b", VMID: 111, UUID: "u-111"}, nil)
	wk1, wk2 := config.Node{Name: "wk1", Schematic: "a", VMID: 111}, config.Node{Name: "wk2", Schematic: "b", VMID: 112}
	unnumbered := config.Node{Name: "wk2", Schematic: "a"}
	away := &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve9", Why: "is offline"}}}
	cases := map[string]struct {
		nodes   []config.Node
		proxmox datacentre
		kube    map[string]string // name → UUID; nil: it can't be asked
		want    map[string][]string
		err     string
	}{
		"by VMID, without Kubernetes": {
			nodes: []config.Node{wk1, wk2}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2"), vm(113, "pve3")}},
			want: map[string][]string{"a": {"pve1"}, "b": {"pve2"}},
		},
		"by UUID where there is no VMID": {
			nodes: []config.Node{wk1, unnumbered}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2")}},
			kube: map[string]string{"wk1": "u-9", "wk2": "u-112"}, want: map[string][]string{"a": {"pve1", "pve2"}},
		},
		"Kubernetes is away": {
			nodes: []config.Node{wk1, unnumbered}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1"), vm(112, "pve2")}},
			err: "find the VMs of nodes without a VMID: no route to host",
		},
		"deleted by an unfinished replacement": {
			nodes: []config.Node{wk1}, proxmox: datacentre{vms: []cluster.VM{open}}, want: map[string][]string{"a": {"pve1"}},
		},
		"a finished one says nothing": {
			nodes: []config.Node{wk1}, proxmox: datacentre{vms: []cluster.VM{done}}, err: "node wk1: Proxmox shows no VM 111",
		},
		"on a host that is away": {
			nodes: []config.Node{wk1, wk2}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1")}, err: away}, want: map[string][]string{"a": {"pve1"}},
		},
		"to be made": {
			nodes: []config.Node{wk1, {Name: "wk3", Schematic: "a", Host: "pve2"}}, proxmox: datacentre{vms: []cluster.VM{vm(111, "pve1")}},
			want: map[string][]string{"a": {"pve1", "pve2"}},
		},
		"all that is not there": {
			nodes: []config.Node{wk1, unnumbered, {Name: "wk3"}}, kube: map[string]string{"wk2": "u-112"},
			err: "node wk1: Proxmox shows no VM 111\nnode wk2: Proxmox shows no VM with its SMBIOS UUID u-112\nnode wk3: Kubernetes has no node of that name",
		},
		"Proxmox is away": {nodes: []config.Node{wk1}, proxmox: datacentre{err: errors.New("595 Connection refused")}, err: "read Proxmox: 595 Connection refused"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Project{Config: &config.Config{Cluster: "c1", Nodes: tc.nodes}}
			got, err := isoHosts(t.Context(), p, PublishSources{Proxmox: storehouse{datacentre: tc.proxmox}, Nodes: func(context.Context) (nodes []cluster.KubeNode, err error) {
				if tc.kube == nil {
					return nil, errors.New("no route to host")
				}
				for name, uuid := range tc.kube {
					nodes = append(nodes, cluster.KubeNode{Name: name, UUID: uuid})
				}
				return nodes, nil
			}})
			if err == nil && tc.err != "" || err != nil && err.Error() != tc.err {
				t.Fatalf("error is %v, want %q", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
		})
	}
}
