package simtest

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// addNode adds a node like another one to recast.yaml and to the files, with a whole class.
func (l *Lab) addNode(node, like string, more string) {
	l.t.Helper()
	config := string(l.Read("recast.yaml"))
	addr := netip.AddrFrom4([4]byte{127, 42, 7, byte(251 + strings.Count(config, ", class: "))}) // above the DHCP pool
	class := fmt.Sprintf(`{%smemory: 4096, onboot: true, tags: [talos], cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}, {slot: scsi1, storage: fast, size: 5G, serial: data-%s}]}`, more, node)
	if !strings.Contains(config, "vmClasses:\n") {
		l.Replace("recast.yaml", "nodes:\n", "vmClasses:\nnodes:\n")
	}
	l.Replace("recast.yaml", "vmClasses:\n", fmt.Sprintf("vmClasses:\n  new-%s: %s\n", node, class))
	l.Replace("recast.yaml", "nodes:\n", fmt.Sprintf("nodes:\n  - {name: %s, schematic: %s, class: new-%s, host: pve1, vm: {ipconfig: ['ip=%s/24,gw=%s']}}\n", node, l.node(like).Schematic, node, addr, "127.42.7.1"))
	files := configFiles{node: cluster.Secret(strings.NewReplacer("data-"+like, "data-"+node, "hostname: "+like, "hostname: "+node, "minSize: 10GB", "minSize: 1GB").Replace(string(l.configOf(like))))}
	l.MachineConfig = files.read
}

// TestCreate makes a node that is nowhere yet.
func TestCreate(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 1, Workers: 1}, map[string]struct{ node, like, class string }{
		"a worker":               {"wk2", "wk1", ""},
		"a control plane":        {"cp2", "cp1", ""},
		"in a pool, and HA":      {"wk2", "wk1", "pool: talos, ha: {state: started}, "},
		"with UEFI, two sockets": {"wk2", "wk1", "bios: ovmf, machine: q35, agent: true, sockets: 2, cores: 1, description: ours, startup: 'order=3', "},
	}, func(t *testing.T, lab *Lab, s struct{ node, like, class string }) {
		lab.allowShape()
		lab.addNode(s.node, s.like, s.class)
		user := lab.Client()
		requireDrift(t, lab, s.node)
		p := lab.planOf(user, s.node, planning.Policy{})
		if p.Strategy != cluster.Create || len(p.Refused) > 0 || p.VMID == 0 {
			t.Fatalf("planned as %s, %s: %v", p.Strategy, p.Why, p.Refused)
		}
		must(t, user.roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
		if _, err := lab.Kube.Node(t.Context(), s.node); err != nil {
			t.Error(err)
		}
	})
}

// TestControlPlanesComeAndGo makes three control planes of one, and one of three, each step by a command
// of its own.
func TestControlPlanesComeAndGo(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		members := func(want ...string) {
			t.Helper()
			var got []string
			for _, m := range lab.EtcdMembers() {
				got = append(got, m.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("etcd has %q, want %q", got, want)
			}
			for _, v := range lab.EtcdViolations() {
				t.Errorf("etcd: %s", v)
			}
		}
		for _, node := range []string{"cp2", "cp3"} {
			lab.addNode(node, "cp1", "")
			must(t, lab.Client().roll(planning.Policy{})(t.Context()))
			requireInSync(t, lab)
		}
		members("cp1", "cp2", "cp3")
		_, err := lab.Client().Remove(t.Context(), "cp1")
		requireRefused(t, err, "the talosconfig has no other endpoint")
		for _, node := range []string{"cp3", "cp2"} {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
		}
		members("cp1")
	})
}

// TestCreateOfAnotherCluster: a new node's file of another cluster is not applied to it.
func TestCreateOfAnotherCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := New(t, oneWorker())
		lab.addNode("wk2", "wk1", "")
		file, _, err := lab.MachineConfig(t.Context(), "wk2")
		must(t, err)
		lab.MachineConfig = configFiles{"wk2": regexp.MustCompile(`(?m)^(    token: ).*$`).ReplaceAll(file, []byte("${1}abcdef.0123456789abcdef"))}.read
		p := lab.planOf(lab.Client(), "wk2", planning.Policy{})
		if refused := strings.Join(p.Refused, "\n"); !strings.Contains(refused, "differs from wk1 in the machine's token, the bootstrap token of Kubernetes: is it the file of another cluster?") {
			t.Errorf("refused: %q", refused)
		}
		requireRefused(t, lab.Client().roll(planning.Policy{})(t.Context()), "is it the file of another cluster?")
	})
}

// TestCreateRefused: what would fail once its VM is there is refused by the plan.
func TestCreateRefused(t *testing.T) {
	eachInLab(t, oneWorker(), map[string]struct{ old, new, refused string }{
		"more memory than there is": {"memory: 4096", "memory: 4096000", "its VM takes 4000 GiB of memory, and pve1 has "},
		"the address of another":    {"ip=127.42.7.251/24", "ip=127.42.7.11/24", "its address is to be 127.42.7.11, which is that of node cp1"},
		"an unknown host":           {"host: pve1", "host: pve9", "is nodes[].host, pve9, a Proxmox node?"},
		"an unknown storage":        {"{slot: scsi0, storage: fast", "{slot: scsi0, storage: fats", "Proxmox has no storage fats"},
	}, func(t *testing.T, lab *Lab, s struct{ old, new, refused string }) {
		lab.addNode("wk2", "wk1", "")
		lab.Replace("recast.yaml", s.old, s.new)
		p := lab.planOf(lab.Client(), "wk2", planning.Policy{})
		if refused := strings.Join(p.Refused, "\n"); !strings.Contains(refused, s.refused) {
			t.Errorf("refused: %q, want %q", refused, s.refused)
		}
	})
}

// TestCreateKilled kills the making of a node at points of every kind, and goes on with its journal or
// without.
func TestCreateKilled(t *testing.T) {
	long(t)
	for _, s := range []struct{ node, like string }{{"wk2", "wk1"}, {"cp2", "cp1"}} {
		t.Run(s.node, func(t *testing.T) {
			prepared := func(t *testing.T) *Lab {
				lab := New(t, oneWorker())
				lab.addNode(s.node, s.like, "")
				return lab
			}
			var points []point
			synctest.Test(t, func(t *testing.T) { points, _ = prepared(t).finish(t, rolls(planning.Policy{})) })
			for _, at := range chosenPoints(t, points) {
				t.Run(strconv.Itoa(at.at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						lab := prepared(t)
						lab.diesAt(t, at, rolls(planning.Policy{}))
						if at.at%2 == 0 {
							lab.loseJournal()
						}
						if _, err := lab.Client().Recover(t.Context(), s.node); fault.KindOf(err) != fault.Refused {
							t.Errorf("killed at %s: recovered: %v", at, err)
						}
						lab.finish(t, rolls(planning.Policy{}))
						requireInSync(t, lab)
						made := 0
						for _, vm := range lab.World.VMs() {
							if vm.Config["name"] == s.node {
								made++
							}
						}
						if made != 1 {
							t.Errorf("killed at %s: there are %d VMs %s", at, made, s.node)
						}
					})
				})
			}
		})
	}
}
