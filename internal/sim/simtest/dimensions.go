package simtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/world"
)

// BootsDisks has new machines boot prepared disks, from a storage that every host has.
func (l *Lab) BootsDisks(boot string) {
	l.t.Helper()
	if boot == cluster.BootFromISO {
		return // it is the default
	}
	l.Replace("recast.yaml", "  iso: {", "  boot: "+boot+"\n  disk: {storage: [local]}\n  iso: {")
}

// SurgeNode is the name of every surge node, without its number.
const SurgeNode = "wk-surge"

// AddSurge adds surge nodes to recast.yaml and to the files, and asks for them.
func (l *Lab) AddSurge(count int) {
	l.t.Helper()
	l.allowShape()
	machine, _, _ := strings.Cut(string(l.configOf("wk1")), "\n---\n") // without its data volume
	files, nodes := configFiles{}, ""
	for i := range count {
		name := fmt.Sprintf("%s%d", SurgeNode, i+1)
		files[name] = cluster.Secret(machine)
		nodes += fmt.Sprintf("  - {name: %s, schematic: %s, class: surge, host: pve1, surge: true, vm: {ipconfig: ['ip=127.42.7.%d/24,gw=127.42.7.1']}}\n", name, l.node("wk1").Schematic, 251+i)
	}
	l.Replace("recast.yaml", "nodes:\n", `vmClasses:
  surge: {memory: 4096, cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}]}
nodes:
`+nodes)
	l.Replace("recast.yaml", "roll:\n", fmt.Sprintf("roll:\n  surge: %d\n", count))
	l.MachineConfig = files.read
}

// allowShape makes the pool talos, and gives the token what pools, HA, tags and the order need.
func (l *Lab) allowShape() {
	l.World.AddPool("talos")
	l.World.AddRole("Shape", "Sys.Console", "Sys.Modify", "Pool.Allocate", "VM.Allocate")
	for _, who := range []string{"recast@pve", "recast@pve!lab"} {
		l.World.Grant(world.ACL{Path: "/", Who: who, Role: "Shape", Propagate: true})
	}
}

// configOf is a machine's present configuration.
func (l *Lab) configOf(node string) cluster.Secret {
	l.t.Helper()
	s := valueOf(l.Client().connect(l.t.Context()))(l.t)
	defer s.end()
	config := valueOf(s.machines.Talos.MachineConfig(l.t.Context(), l.node(node).Addr))(l.t)
	return config
}

// configFiles are a user's files of talos.machineConfigs, by node.
type configFiles map[string]cluster.Secret

func (f configFiles) read(_ context.Context, node string) (cluster.Secret, bool, error) {
	text, found := f[node]
	return text, found, nil
}
