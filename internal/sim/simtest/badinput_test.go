package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// badInput is a user's or the world's invalid input to a roll.
type badInput struct {
	spoil func(l *Lab)
	kind  fault.Kind
	text  string // of the error: place and problem
	hint  string // the remedy; "" if the message contains it
}

func badInputs() map[string]badInput {
	edit := func(file, old, fresh string) func(*Lab) {
		return func(l *Lab) { l.Replace(file, old, fresh) }
	}
	return map[string]badInput{
		"unknown key": {edit("recast.yaml", "settle: 2s", "setle: 2s"), fault.Config, "recast.yaml:21:3: roll.setle: ", ""},
		"missing file": {
			edit("recast.yaml", "schematics/storage.yaml", "schematics/nowhere.yaml"), fault.Config, "schematics/nowhere.yaml", "",
		},
		"unknown extension": {
			func(l *Lab) {
				l.Replace("schematics/storage.yaml", "siderolabs/iscsi-tools", "siderolabs/iscsi-tool")
				_, err := l.Client().Lock(l.t.Context(), pipeline.LockOptions{})
				requireFault(l.t, err, fault.Config, "schematics/storage.yaml:5:9", "siderolabs/iscsi-tools")
			}, fault.Config, "schematic storage has changed since it was locked", "recast lock",
		},
		"no lock": {edit("recast.lock", "", "removed"), fault.Config, "recast.lock", "recast lock"},
		"a node that matches no VM": {
			func(l *Lab) { l.EditVM(9031, "smbios1", "uuid=00000000-0000-4000-8000-000000000000") },
			fault.Config, "node wk1: no VM has its SMBIOS UUID 5ec0ffee-0000-4000-8000-000000009031", "VM.Audit",
		},
		"a node that matches two VMs": {
			func(l *Lab) {
				l.DefineVM(9050, map[string]string{"name": "clone", "smbios1": "uuid=5EC0FFEE-0000-4000-8000-000000009031"})
			},
			fault.Config, "node wk1: 2 VMs have its SMBIOS UUID", "a UUID of its own",
		},
		"a VMID of another VM": {
			edit("recast.yaml", "vmid: 9031", "vmid: 9032"), fault.Refused, "node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009031 belongs to VM 9031", "nodes[].vmid",
		},
		"a node that Kubernetes does not know": {
			edit("recast.yaml", "{name: wk1,", "{name: wk7,"), fault.Config, "node wk7: Kubernetes knows no node of that name", "cp1 wk1",
		},
		"full storage": {
			func(l *Lab) { l.World.FillStorage(sim.ISOStorage) }, fault.Refused, "isos", "",
		},
		"an ACL entry that would go with the VM": {
			func(l *Lab) {
				l.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: recreate\n")
				l.World.Grant(world.ACL{Path: "/vms/9031", Who: "recast@pve!lab", Role: "Recast", Propagate: true})
			}, fault.Refused, "wk1: the VM has an ACL entry at /vms/9031", "--exclude",
		},
		"no quorum": {
			func(l *Lab) { l.World.SetQuorum(false) }, fault.Refused, "no quorum", "pvecm status",
		},
	}
}

// TestBadInput rolls with an invalid input: there is one clear error with its remedy, and
// nothing in the datacentre has changed.
func TestBadInput(t *testing.T) {
	for name, bad := range badInputs() {
		t.Run(name, func(t *testing.T) {
			if name != "no quorum" {
				long(t)
			}
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				bad.spoil(lab)
				before := len(lab.Recorder.Calls())
				requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), bad.kind, bad.text, bad.hint)
				lab.requireNothingSent(before, "factory")
				lab.RequireIntact()
			})
		})
	}
}

// ofClaim says whether a request only creates, beats or removes the claim.
func ofClaim(call record.Call) bool {
	const vms = "/api2/json/nodes/pve1/qemu"
	return call.Proto == "proxmox" && (call.Path == vms && call.Method == "POST" || strings.HasPrefix(call.Path, vms+"/9000"))
}
