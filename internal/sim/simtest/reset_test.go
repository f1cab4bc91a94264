package simtest

import (
	"context"
	"crypto/tls"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline/configs"
)

// TestResetMachine: a person has reset a node, which is in maintenance mode. If its
// configuration is at hand a roll applies it and then rolls the node to the wanted build;
// else the error says which command to type, and that works.
func TestResetMachine(t *testing.T) {
	type story struct {
		node   string
		labels []string
		files  bool // talos.machineConfigs
	}
	cases := map[string]story{
		"a worker":                                {"wk1", []string{"STATE"}, true},
		"a worker, with all it had":               {"wk1", []string{"STATE", "EPHEMERAL"}, true},
		"a worker, its configuration lost":        {"wk1", []string{"STATE"}, false},
		"a control plane":                         {"cp2", []string{"STATE"}, true},
		"a control plane, with its data":          {"cp2", []string{"STATE", "EPHEMERAL"}, true},
		"a control plane, its configuration lost": {"cp2", []string{"STATE", "EPHEMERAL"}, false},
	}
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, cases, func(t *testing.T, lab *Lab, c story) {
		configs := lab.machineConfigs()
		lab.Patch(everywhere)
		lab.reset(c.node, c.labels...)
		user := lab.Client()
		var plans []string
		user.Confirm = func(p planning.Plan) (bool, error) {
			for _, n := range p.Work() {
				plans = append(plans, n.Node+" "+string(n.Strategy))
			}
			return true, nil
		}
		want := []string{c.node + " recreate"}
		if c.files {
			user.MachineConfig = configs
			want = slices.Insert(want, 0, c.node+" install-reset")
		}
		from := len(lab.Recorder.Calls())
		err := user.roll(policyFor(c.node))(t.Context())
		if !c.files {
			requireReset(t, lab, c.node, err)
			lab.requireLeftAlone(from, c.node)
			config, _, _ := configs(t.Context(), c.node)
			lab.applyInsecure(c.node, config) // as the hint says
			err = user.roll(policyFor(c.node))(t.Context())
		}
		must(t, err)
		requireSame(t, want, plans, "what was planned (-want +got)")
		requireMembers(t, lab, "", false)
		lab.requireUpgraded(t, c.node)
	})
}

// requireReset checks the error about a reset node.
func requireReset(t *testing.T, lab *Lab, node string, err error) {
	t.Helper()
	requireFault(t, err, fault.Failed, "node "+node, "is in maintenance mode: its machine has no configuration any more, as after talosctl reset",
		"put it as "+node+".yaml into the directory that talos.machineConfigs names",
		"talosctl apply-config --insecure -n "+lab.node(node).Addr.String()+" --file "+node+".yaml")
}

// applyInsecure is talosctl apply-config --insecure.
func (l *Lab) applyInsecure(node string, config []byte) {
	l.t.Helper()
	dialer := l.Lab.Client()
	c, err := client.New(l.t.Context(), client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}), client.WithEndpoints(l.node(node).Addr.String()), client.WithGRPCDialOptions( //nolint:gosec // as talosctl does
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) })))
	must(l.t, err)
	defer c.Close()
	must(l.t, errOf(c.ApplyConfiguration(l.t.Context(), &machineapi.ApplyConfigurationRequest{Data: config})))
	time.Sleep(3 * time.Minute)
}

// TestResetToNothing: a person has wiped the whole system disk, and the machine boots
// nothing. recast's hint repairs it.
func TestResetToNothing(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		config := lab.configOf("wk1")
		lab.Patch(everywhere)
		lab.reset("wk1")
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
		hints := strings.Join(fault.Hints(err), "\n")
		say := regexp.MustCompile(`recast publish, then on pve1 qm set 9031 --ide2 (\S+),media=cdrom && qm stop 9031 && qm start 9031; in maintenance mode talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml `).FindStringSubmatch(hints)
		mustBe(t, say != nil, "%v\nhints: %s", err, hints)
		requireNone(t, lab.touched(from, "wk1"), "wk1 was touched")
		n := lab.node("wk1")
		must(t, lab.Client().Publish(t.Context()))
		must(t, lab.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Set: map[string]string{"ide2": say[1] + ",media=cdrom"}}))
		must(t, lab.World.PowerOff(n.VMID))
		must(t, lab.World.PowerOn(n.VMID))
		time.Sleep(2 * time.Minute)

		_, err = lab.Client().Roll(t.Context(), policyFor("wk1"))
		requireFault(t, err, fault.Failed, "Talos is on none of its disks: talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml installs it")
		lab.applyInsecure("wk1", config)
		lab.mustRoll(secondRun, policyFor("wk1"))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestAResetMachineGetsItsOwnFile: a node that was reset keeps its data disks, and gets no file of another
// cluster, nor of another role.
func TestAResetMachineGetsItsOwnFile(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		own, planes := lab.configOf("wk1"), lab.configOf("cp1")
		lab.reset("wk1", "STATE")
		for says, file := range map[string]cluster.Secret{
			"the bootstrap token of Kubernetes: is it the file of another cluster?": regexp.MustCompile(`(?m)^(    token: ).*$`).ReplaceAll(own, []byte("${1}abcdef.0123456789abcdef")),
			"differs from cp1 in the cluster's endpoint":                            cluster.Secret(strings.Replace(string(own), "endpoint: https://", "endpoint: https://10.9.9.9:6443 # ", 1)),
			"makes it a control-plane, and it is a worker: is it the":               planes,
			"gives it the hostname cp1: is it the file of that node?":               cluster.Secret(strings.ReplaceAll(string(own), "hostname: wk1", "hostname: cp1")),
			"differs from cp1 in the CA of Kubernetes":                              withOtherCA(t, own),
		} {
			from := len(lab.Recorder.Calls())
			user := configFiles{"wk1": file}.user(lab, firstRun)
			requireRefused(t, user.roll(onlyWorker)(t.Context()), says)
			lab.requireLeftAlone(from, "wk1")
			// recast config diff says the same of who the machine would be, whichever nodes are named. The plan adds volumes.
			for _, nodes := range [][]string{nil, {"wk1"}} {
				res := valueOf(connected(t.Context(), user, func(s *session) (configs.Diffs, error) {
					return configs.Compare(t.Context(), s.project, s.machines, nodes...)
				}))(t)
				d := res.Nodes[len(res.Nodes)-1]
				plan := lab.planOf(user, "wk1", onlyWorker)
				require(t, d.Reset && len(d.Refused) != 0 && !res.Same && res.Differ == 1 && slices.Equal(d.Refused, plan.Refused[:min(len(d.Refused), len(plan.Refused))]) && strings.Contains(d.Refused[0], says),
					"config diff %v: %+v; the plan: %q", nodes, res, plan.Refused)
			}
		}
		user := configFiles{"wk1": own}.user(lab, firstRun)
		p := lab.planOf(user, "wk1", onlyWorker)
		require(t, p.Strategy == cluster.InstallReset && len(p.Refused) == 0, "planned as %s: %q", p.Strategy, p.Refused)
		must(t, user.roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		lab.RequireIntact()
	})
}

// TestEncryptionOfAFile: keys in a file that no later roll could open again are refused, for a node that runs, and for one that
// was reset; others are not.
func TestEncryptionOfAFile(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		own := lab.configOf("wk1")
		const (
			tpm    = "volume u-extra is encrypted with a TPM key, but the VM has no tpmstate0"
			locked = "volume u-extra is encrypted with lockToState and would be unreadable once STATE is gone"
		)
		for _, reset := range []bool{false, true} {
			if reset {
				lab.reset("wk1", "STATE")
			}
			for keys, want := range map[string]string{
				"{slot: 0, kms: {endpoint: 'https://kms.example'}}":            "",
				"{slot: 0, static: {passphrase: hush}}, {slot: 1, nodeID: {}}": "",
				"{slot: 0, tpm: {}}": tpm,
				"{slot: 0, static: {passphrase: hush}}, {slot: 1, tpm: {}}":            tpm,
				"{slot: 0, nodeID: {}, lockToState: true}":                             locked,
				"{slot: 0, kms: {endpoint: 'https://kms.example'}, lockToState: true}": locked,
			} {
				file := append(slices.Clip(own), "---\napiVersion: v1alpha1\nkind: UserVolumeConfig\nname: extra\nprovisioning: {diskSelector: {match: '!system_disk'}, minSize: 1GB}\nencryption: {provider: luks2, keys: ["+keys+"]}\n"...)
				n := lab.planOf(configFiles{"wk1": file}.user(lab, firstRun), "wk1", onlyWorker)
				refused := strings.Join(n.Refused, "\n")
				if n.Strategy == "" || want == "" && strings.Contains(refused, "encrypted") || !strings.Contains(refused, want) || strings.Contains(refused, "hush") {
					t.Errorf("reset %t, %s: %s, refused %q", reset, keys, n.Strategy, n.Refused)
				}
			}
		}
	})
}

// TestFilesThatKeepAVolumeFromWorking: with another filesystem or encryption of a volume that stays, or the name of another
// node, nothing gets a file, and acceptLoss lifts none of that. A reset machine with a volume in two slots gets none either.
func TestFilesThatKeepAVolumeFromWorking(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		own := lab.configOf("wk1")
		lab.Replace("recast.yaml", "vmid: 9031}", "vmid: 9031, acceptLoss: [u-data]}")
		edited := func(old, fresh string) cluster.Secret {
			text := strings.Replace(string(own), old, fresh, 1)
			mustBe(t, text != string(own), "the configuration has no %q", old)
			return cluster.Secret(text)
		}
		encrypted := edited("kind: UserVolumeConfig\n", "kind: UserVolumeConfig\nencryption: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n")
		refused := func(file cluster.Secret, says string) {
			t.Helper()
			n := lab.planOf(configFiles{"wk1": file}.user(lab, firstRun), "wk1", onlyWorker)
			all := strings.Join(n.Refused, "\n")
			require(t, strings.Contains(all, says), "%s: %q, want %q", n.Strategy, all, says)
		}
		for _, stale := range []bool{false, true} {
			if stale {
				lab.Patch(sim.PatchedExtension)
			}
			refused(edited("type: xfs", "type: ext4"), "has another filesystem (ext4) for UserVolumeConfig data, whose volume is on the disk sdb, with xfs")
			refused(encrypted, "has another encryption for UserVolumeConfig data, whose volume is on the disk sdb")
		}
		other := configFiles{"wk1": edited("hostname: wk1", "hostname: CP1.example.com")}
		n := lab.planOf(other.user(lab, firstRun), "wk1", onlyWorker)
		require(t, len(n.Refused) == 0, "one file for several nodes, which each of them runs: %q", n.Refused)
		other.set(t, "wk1", noReboot)
		refused(other["wk1"], "gives it the hostname cp1: is it the file of that node?")
		lab.reset("wk1", "STATE")
		refused(encrypted, "has another encryption for UserVolumeConfig data, whose volume on the disk sdb is not encrypted")
		change("scsi6=" + wk1Data + ",backup=0,iothread=1")(lab)
		refused(own, "the volume of scsi1 is also scsi6")
	})
}

// withOtherCA is a worker's configuration with another certificate as the CA of Kubernetes.
func withOtherCA(t *testing.T, file cluster.Secret) cluster.Secret {
	t.Helper()
	certs := regexp.MustCompile(`crt: (\S+)`).FindAllSubmatch(file, -1)
	mustBe(t, len(certs) == 2, "%d certificates, not those of Talos and Kubernetes", len(certs))
	return cluster.Secret(strings.Replace(string(file), string(certs[1][1]), string(certs[0][1]), 1))
}
