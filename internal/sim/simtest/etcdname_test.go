package simtest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestPeers17ANameOfTwo: a machine that joins etcd removes the member with its own name,
// whoever that is (talos PR #3715). While two have the same name, nothing is taken down.
func TestPeers17ANameOfTwo(t *testing.T) {
	long(t)
	type story struct {
		spoil func(t *testing.T, l *Lab)
		kind  fault.Kind
		text  string
	}
	cases := map[string]story{
		"two members of etcd":      {func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp3": "cp2"}) }, fault.Refused, "etcd has two members named cp2"},
		"a member of another name": {func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp2": "old"}) }, fault.Refused, "which is named old: when the machine joins again"},
		"another machine's member": {
			func(t *testing.T, l *Lab) { rename(t, l, map[string]string{"cp2": "cp3", "cp3": "cp2"}) }, fault.Refused, "but what runs on 127.42.7.13 is member",
		},
		"another machine, without VMIDs": {
			func(t *testing.T, l *Lab) {
				impostor(t, l, "cp2", "wk2")
				for _, n := range l.Nodes {
					l.Replace("recast.yaml", fmt.Sprintf(", vmid: %d", n.VMID), "")
				}
			}, fault.Config, "nodes cp2 and wk2 are both VM 9032",
		},
	}
	eachInLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, cases, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		c.spoil(t, lab)
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("cp2"))
		requireFault(t, err, c.kind, c.text)
		if len(fault.Hints(err)) == 0 {
			t.Errorf("no hint: %v", err)
		}
		if touched := lab.touched(from, "cp2"); len(touched) > 0 {
			t.Errorf("cp2 was touched: %q", touched)
		}
	})
}

// rename starts the etcd members of control planes under other names, all at once.
func rename(t *testing.T, l *Lab, names map[string]string) {
	t.Helper()
	for node := range names {
		must(t, l.World.PowerOff(l.node(node).VMID))
	}
	for node, name := range names {
		l.editEtcd(t, node, fmt.Sprintf(`"Name":%q`, node), fmt.Sprintf(`"Name":%q`, name))
	}
	for node := range names {
		must(t, l.World.PowerOn(l.node(node).VMID))
	}
	time.Sleep(2 * time.Minute)
}

// editEtcd changes etcd's data on the system disk of a stopped control plane.
func (l *Lab) editEtcd(t *testing.T, node string, old, fresh string) {
	t.Helper()
	n := l.node(node)
	vm, err := l.World.LookupVM(n.Host, n.VMID)
	must(t, err)
	volid, _, _ := strings.Cut(vm.Config["scsi0"], ",")
	media := l.World.Media(volid, n.Host)
	disk, err := artefact.ReadDisk(media.Bytes())
	must(t, err)
	edited := false
	for i, p := range disk.Partitions {
		data := bytes.Replace(p.Data, []byte(old), []byte(fresh), 1)
		edited = edited || !bytes.Equal(data, p.Data)
		disk.Partitions[i].Data = data
	}
	if !edited {
		t.Fatalf("the system disk of %s has no %s", node, old)
	}
	media.Write(artefact.WriteDisk(disk))
}

// impostor gives another machine a control plane's configuration, including its name.
func impostor(t *testing.T, l *Lab, name, machine string) {
	t.Helper()
	config, err := l.Talos.MachineConfig(talosapi.Machine{Hostname: name, ControlPlane: true, Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion, InstallSerial: "sys-" + machine})
	must(t, err)
	l.apply(machine, config)
}
