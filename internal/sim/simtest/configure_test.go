package simtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/configs"
)

func (l *Lab) keptConfigs() configFiles {
	l.t.Helper()
	files := configFiles{}
	for _, n := range l.Nodes {
		files[n.Name] = l.configOf(n.Name)
	}
	return files
}

// rebooted are the boots of nodes since earlier ones.
func (l *Lab) rebooted(since []string) []string {
	return slices.DeleteFunc(l.boots(), func(boot string) bool { return slices.Contains(since, boot) })
}

func (f configFiles) set(t testing.TB, node, line string) {
	t.Helper()
	text := strings.Replace(string(f[node]), "machine:\n", "machine:\n    "+line+"\n", 1)
	mustBe(t, text != string(f[node]), "the file has no machine section")
	f[node] = cluster.Secret(text)
}

func (f configFiles) document(node, text string) {
	f[node] = cluster.Secret(strings.TrimRight(string(f[node]), "\n") + "\n---\n" + text)
}

const (
	noReboot    = `sysctls: {vm.swappiness: "1"}`
	needsReboot = "udev: {rules: ['SUBSYSTEM==\"drm\", KERNEL==\"renderD*\", MODE=\"0666\"']}"
)

// TestConfigure gives a node that is in sync another configuration, and nothing else.
func TestConfigure(t *testing.T) {
	type story struct{ node, line string }
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, map[string]story{
		"a worker": {"wk1", noReboot}, "a worker, with a reboot": {"wk1", needsReboot},
		"a control plane": {"cp2", noReboot}, "a control plane, and a reboot": {"cp2", needsReboot},
	}, func(t *testing.T, lab *Lab, s story) {
		files, reboots := lab.keptConfigs(), s.line == needsReboot
		user := files.user(lab, firstRun)
		user.requireStale(t)
		files.set(t, s.node, s.line)
		user.requireStale(t, s.node)
		before := lab.boots()
		p := lab.planOf(user, s.node, planning.Policy{})
		requirePlanned(t, p, cluster.ApplyConfig)
		require(t, (len(p.ConfigFile.Reboot) > 0) == reboots && len(p.ConfigFile.Changes) > 0, "%+v", p.ConfigFile)
		must(t, user.roll(planning.Policy{})(t.Context()))
		user.requireStale(t)
		lab.requireServing(s.node)
		requireCount(t, map[bool]int{true: 1}[reboots], lab.rebooted(before), "nodes were rebooted")
		requireNone(t, lab.savedConfigs(), "the journal still has")
	})
}

// requireStale fails unless drift finds these nodes stale, each for its configuration alone.
func (c *Client) requireStale(t *testing.T, nodes ...string) {
	t.Helper()
	var stale []string
	for _, d := range valueOf(c.Drift(t.Context()))(t).Nodes {
		if d.Stale {
			stale = append(stale, d.Node)
		}
		require(t, len(d.Unread) == 0 && (!d.Stale || len(d.Of(false, true, false).Reasons) == len(d.Reasons)), "%+v", d)
	}
	requireSame(t, nodes, stale, "stale (-want +got)")
}

// A node that is upgraded in place gets its configuration in the same outage, but --what leaves the other part.
func TestWhatIsRolled(t *testing.T) {
	type story struct {
		line       string
		what       []planning.What
		want, left cluster.Strategy // left "": nothing
	}
	eachLong(t, oneWorker(), map[string]story{
		"both, without another reboot": {noReboot, nil, cluster.InPlace, ""},
		"both, with one":               {needsReboot, nil, cluster.InPlace, ""},
		"configurations":               {noReboot, []planning.What{planning.Config}, cluster.ApplyConfig, cluster.InPlace},
		"images":                       {noReboot, []planning.What{planning.Image}, cluster.InPlace, cluster.ApplyConfig},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.setRoll("canary: false", "strategy: in-place")
		files := lab.keptConfigs()
		lab.Patch(sim.PatchedExtension)
		files.set(t, "wk1", s.line)
		user := files.user(lab, firstRun)
		policy := planning.Policy{Only: []string{"wk1"}, What: s.what}
		requirePlanned(t, lab.planOf(user, "wk1", policy), s.want)
		must(t, user.roll(policy)(t.Context()))
		lab.requireServing("wk1")
		if s.left == "" {
			user.requireStale(t)
		} else {
			requirePlanned(t, lab.planOf(user, "wk1", planning.Policy{}), s.left)
		}
	})
}

// TestAnotherIdentityIsRefused: a configuration must not make a node another one, nor take a volume from it.
func TestAnotherIdentityIsRefused(t *testing.T) {
	type story struct {
		change func(t *testing.T, text string) string
		says   string
	}
	replaced := func(from, to string) func(*testing.T, string) string {
		return func(_ *testing.T, text string) string { return strings.Replace(text, from, to, 1) }
	}
	eachLong(t, oneWorker(), map[string]story{
		"a control plane's": {replaced("type: worker", "type: controlplane"), "can't be compared with what it runs: Talos would refuse it"}, // without its keys
		"another token":     {replaced("token: ", "token: abcdef.0123456789abcdef # "), "would change the machine's token"},
		"another endpoint":  {replaced("endpoint: https://", "endpoint: https://10.9.9.9:6443 # "), "would change the cluster's endpoint"},
		"without its volume": {func(t *testing.T, text string) string {
			return strings.Replace(text, "---\n"+userVolumeIn(t, text), "", 1)
		}, "lacks UserVolumeConfig data, whose volume is on the disk sdb"},
		"its volume is not here": {replaced("!system_disk", "disk.transport == \"nvme\""), "has another place for UserVolumeConfig data"},
	}, func(t *testing.T, lab *Lab, s story) {
		files := lab.keptConfigs()
		was := string(files["wk1"])
		if files["wk1"] = cluster.Secret(s.change(t, was)); string(files["wk1"]) == was {
			t.Fatalf("nothing was changed in\n%s", was)
		}
		lab.refuses(files.user(lab, firstRun).roll(onlyWorker), s.says, "wk1")
	})
}

// A node that is not healthy with its configuration gets the old one back, from Talos or recast. It costs one node.
func TestBadConfigurationIsGivenBack(t *testing.T) {
	type story struct {
		to     []string // the nodes
		edit   func(text string) string
		image  string // that it names, and what is wrong with that; "": none
		defect talosapi.Defect
		says   []string
	}
	adds := func(document string) func(string) string {
		return func(text string) string { return strings.TrimRight(text, "\n") + "\n---\n" + document }
	}
	swaps := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	names := func(line string) func(string) string {
		return swaps("machine:\n", "machine:\n    "+line+"\n", "ghcr.io/siderolabs/kubelet", "ghcr.io/nobody/kubelet")
	}
	const kubelet, etcd = "ghcr.io/nobody/kubelet:v1.35.4", "ghcr.io/nobody/etcd:v3.6.1"
	const server = "registry.k8s.io/kube-apiserver-amd64:v1.35.4"
	const onTrial, rebooted = "Talos has taken it back", "it was given its old configuration back, and serves again"
	otherServer := swaps("registry.k8s.io/kube-apiserver:", "registry.k8s.io/kube-apiserver-amd64:")
	otherEtcd := swaps("\n    etcd:\n", "\n    etcd:\n        image: "+etcd+"\n")
	workers, first := []string{"wk1", "wk2"}, "wk1 is not healthy"
	eachLongIn(t, func(s story) sim.Options {
		if s.to[0] == "wk1" {
			return sim.Options{ControlPlanes: 1, Workers: 2}
		}
		return sim.Options{ControlPlanes: 3}
	}, map[string]story{
		"its DNS servers do not answer": {
			to: workers, edit: adds("apiVersion: v1alpha1\nkind: ResolverConfig\nnameservers:\n    - address: 192.0.2.53\n"),
			says: []string{first, "none of its DNS servers answers: 192.0.2.53:53", onTrial},
		},
		"its address is another one": {
			to: workers, edit: adds("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n    - address: 10.99.0.1/24\n"),
			says: []string{first, "context deadline exceeded", onTrial},
		},
		"a kubelet, on trial":              {workers, names(noReboot), kubelet, talosapi.Unready, []string{first, onTrial}},
		"a kubelet, after a reboot":        {workers, names(needsReboot), kubelet, talosapi.Unready, []string{first, rebooted}},
		"an API server that ends at once":  {controlPlanes, otherServer, server, talosapi.Loops, []string{onTrial}},
		"an API server that never answers": {controlPlanes, otherServer, server, talosapi.Unready, []string{"its API server: ", onTrial}},
		"an API server that never serves":  {controlPlanes, otherServer, server, talosapi.Unserving, []string{"its API server: ", onTrial}},
		"an API server that never arrives": {controlPlanes, otherServer, server, talosapi.Unpullable, []string{onTrial}},
		"an etcd that ends at once":        {controlPlanes, otherEtcd, etcd, talosapi.Loops, []string{rebooted}},
		"an etcd that can't be fetched":    {controlPlanes, otherEtcd, etcd, talosapi.Unpullable, []string{rebooted}},
	}, func(t *testing.T, lab *Lab, s story) {
		files, before := lab.keptConfigs(), lab.keptConfigs()
		for _, node := range s.to {
			files[node] = cluster.Secret(s.edit(string(files[node])))
			mustBe(t, string(files[node]) != string(before[node]), "the file of %s is not another one", node)
			if s.image != "" {
				lab.brokenImage(node, s.image, s.defect)
			}
		}
		from := len(lab.Recorder.Calls())
		err := files.user(lab, firstRun).roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, append(s.says, " is not healthy with its new configuration")...)
		touched := 0
		for _, node := range s.to {
			lab.requireServing(node)
			require(t, string(lab.configOf(node)) == string(before[node]), "%s keeps another configuration than before", node)
			if strings.Contains(message(err), node+" is not healthy") {
				touched++
			} else {
				lab.requireLeftAlone(from, node)
			}
		}
		require(t, touched == 1, "%d nodes were touched: %v", touched, err)
		requireNone(t, lab.savedConfigs(), "the journal still has")
		files.user(lab, secondRun).requireStale(t, s.to...)
	})
}

// With SeaBIOS machine.install's arguments arrive with a recreate; an upgrade in place would lose them, and is refused.
func TestKernelArgumentsOfTheConfiguration(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, Layouts: []sim.Layout{{Data: 1}, {Data: 1, SeaBIOS: true}}}, func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		text := strings.Replace(string(files["wk1"]), "grubUseUKICmdline: true", "grubUseUKICmdline: false", 1)
		files["wk1"] = cluster.Secret(strings.Replace(text, "    install:\n", "    install:\n        extraKernelArgs: [net.ifnames=0]\n", 1))
		user := files.user(lab, firstRun)
		n := lab.planOf(user, "wk1", planning.Policy{})
		requirePlanned(t, n, cluster.ApplyConfig)
		requireSays(t, strings.Join(n.Notes, "; "), "takes effect at a recreate or reimage by ISO at the earliest")
		must(t, user.roll(onlyWorker)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		must(t, user.roll(onlyWorker)(t.Context())) // a recreate, whose installer has the configuration
		lab.Patch(sim.CommonExtension)
		lab.inPlace()
		n = lab.planOf(user, "wk1", planning.Policy{})
		require(t, len(n.Refused) == 1 && strings.HasPrefix(n.Refused[0], "its kernel has net.ifnames=0 from machine.install.extraKernelArgs, and the next one would not have it"),
			"refused %q", n.Refused)
	})
}

// A roll applies the configuration of a node that was reset, if there is a file; else its error says what to type.
func TestResetMachine(t *testing.T) {
	type story struct {
		node   string
		labels []string
		files  bool // talos.machineConfigs
	}
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 1}, map[string]story{
		"a worker":                                {"wk1", []string{"STATE"}, true},
		"a worker, with all it had":               {"wk1", []string{"STATE", "EPHEMERAL"}, true},
		"a worker, its configuration lost":        {"wk1", []string{"STATE"}, false},
		"a control plane":                         {"cp2", []string{"STATE"}, true},
		"a control plane, with its data":          {"cp2", []string{"STATE", "EPHEMERAL"}, true},
		"a control plane, its configuration lost": {"cp2", []string{"STATE", "EPHEMERAL"}, false},
	}, func(t *testing.T, lab *Lab, c story) {
		configs := lab.keptConfigs().read
		lab.Patch(everywhere)
		lab.reset(c.node, c.labels...)
		user := lab.Client()
		var plans []string
		user.confirms(func(p planning.Plan) {
			for _, n := range p.Work() {
				plans = append(plans, n.Node+" "+string(n.Strategy))
			}
		})
		want := []string{c.node + " recreate"}
		if c.files {
			user.MachineConfig = configs
			want = slices.Insert(want, 0, c.node+" install-reset")
		}
		from := len(lab.Recorder.Calls())
		policy := policyFor(c.node)
		err := user.roll(policy)(t.Context())
		if c.files { // recast has never started this VM: a person compares the certificate with the VM's console
			requireFault(t, err, fault.Refused, "which nobody has confirmed: nothing was applied")
			lab.requireLeftAlone(from, c.node)
			shown := regexp.MustCompile(`--maintenance-fingerprint (\S+)\)`).FindStringSubmatch(err.Error())[1:]
			var asked []string
			for _, yes := range []bool{false, true} { // on a terminal, a person is asked
				user.Vouch = func(n planning.NodePlan) bool {
					asked = append(asked, n.Unproven)
					return yes
				}
				if policy.Fingerprints = nil; c.node != "wk1" && yes {
					user.Vouch, policy.Fingerprints = nil, shown
				}
				if err = user.roll(policy)(t.Context()); !yes {
					requireFault(t, err, fault.Refused, "which nobody has confirmed: nothing was applied")
					lab.requireLeftAlone(from, c.node)
				}
			}
			requireSame(t, map[bool][]string{false: shown, true: append(slices.Clone(shown), shown...)}[c.node == "wk1"], asked, "certificates that were asked about (-want +got)")
		} else {
			requireFault(t, err, fault.Failed, "node "+c.node, "is in maintenance mode: its machine has no configuration any more, as after talosctl reset",
				"put it as "+c.node+".yaml into the directory that talos.machineConfigs names",
				"talosctl apply-config --insecure -n "+lab.node(c.node).Addr.String()+" --file "+c.node+".yaml")
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

// TestATrialThatTalosDoesNotEnd: in Talos 1.13.9 somebody's dry run ends the timer of a trial, and recast gives the node
// its old configuration.
func TestATrialThatTalosDoesNotEnd(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 2, TalosVersion: "v1.13.9"}, func(t *testing.T, lab *Lab) {
		files, before := lab.keptConfigs(), lab.keptConfigs()
		files["wk1"] = append(bytes.TrimRight(files["wk1"], "\n"), "\n---\napiVersion: v1alpha1\nkind: ResolverConfig\nnameservers:\n    - address: 192.0.2.53\n"...)
		c, once := files.user(lab, firstRun), sync.Once{}
		c.Emit = func(e step.Event) {
			if strings.Contains(e.Text, "none of its DNS servers answers") {
				once.Do(func() {
					lab.talosctl("wk1", func(ctx context.Context, c *client.Client) error {
						return errOf(c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: before["wk1"], DryRun: true, Mode: machineapi.ApplyConfigurationRequest_AUTO}))
					})
				})
			}
		}
		err := c.roll(planning.Policy{})(t.Context())
		requireFault(t, err, fault.Failed, "wk1 is not healthy with its new configuration", "wk1 serves with its old configuration")
		lab.requireServing("wk1")
		require(t, string(lab.configOf("wk1")) == string(before["wk1"]), "wk1 keeps another configuration than before")
	})
}

// confirmed is a policy for the node alone, whose machine is in maintenance mode, by a person who has compared its certificate with its console.
func (l *Lab) confirmed(node string) planning.Policy {
	l.t.Helper()
	policy := policyFor(node)
	blank := valueOf(connected(l.t.Context(), l.Client(), func(s *session) (cluster.BlankMachine, error) {
		return s.machines.Maintenance.MaintenanceMachine(l.t.Context(), l.node(node).Addr)
	}))(l.t)
	policy.Fingerprints = []string{blank.Fingerprint}
	return policy
}

func (l *Lab) applyInsecure(node string, config []byte) {
	l.t.Helper()
	insecure := client.WithTLSConfig(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as talosctl does
	c := valueOf(l.machinery(l.t.Context(), l.node(node).Addr, insecure))(l.t)
	defer c.Close()
	must(l.t, errOf(c.ApplyConfiguration(l.t.Context(), &machineapi.ApplyConfigurationRequest{Data: config})))
	time.Sleep(3 * time.Minute)
}

// A person has wiped the whole system disk, and the machine boots nothing. recast's hint repairs it.
func TestResetToNothing(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		config := lab.configOf("wk1")
		lab.Patch(everywhere)
		lab.reset("wk1")
		must(t, lab.Client().Publish(t.Context()))
		from := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), policyFor("wk1"))
		hints := strings.Join(fault.Hints(err), "\n")
		say := regexp.MustCompile(`recast publish, and this command again for the name of the ISO there, then on pve1 qm set 9031 --ide2 (\S+),media=cdrom && qm stop 9031 && qm start 9031; in maintenance mode talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml `).FindStringSubmatch(hints)
		mustBe(t, say != nil, "%v\nhints: %s", err, hints)
		requireNone(t, lab.touched(from, "wk1"), "wk1 was touched")
		n := lab.node("wk1")
		must(t, lab.World.SetConfig("", n.Host, world.ChangeRequest{ID: n.VMID, Set: map[string]string{"ide2": say[1] + ",media=cdrom"}}))
		must(t, lab.World.PowerOff(n.VMID))
		must(t, lab.World.PowerOn(n.VMID))
		time.Sleep(2 * time.Minute)

		_, err = lab.Client().Roll(t.Context(), policyFor("wk1"))
		requireFault(t, err, fault.Failed, "Talos is on none of its disks: talosctl apply-config --insecure -n 127.42.7.31 --file wk1.yaml installs it")
		lab.applyInsecure("wk1", config)
		lab.as(secondRun).mustRoll(policyFor("wk1"))
		lab.requireUpgraded(t, "wk1")
	})
}

// A node that was reset keeps its data disks, and gets no file of another cluster, nor of another role.
func TestAResetMachineGetsItsOwnFile(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		own, planes := lab.configOf("wk1"), lab.configOf("cp1")
		lab.reset("wk1", "STATE")
		policy := lab.confirmed("wk1")
		for says, file := range map[string]cluster.Secret{
			"the bootstrap token of Kubernetes: is it the file of another cluster?": withOtherToken(own),
			"differs from cp1 in the cluster's endpoint":                            cluster.Secret(strings.Replace(string(own), "endpoint: https://", "endpoint: https://10.9.9.9:6443 # ", 1)),
			"makes it a control-plane, and it is a worker: is it the":               planes,
			"gives it the hostname cp1: is it the file of that node?":               cluster.Secret(strings.ReplaceAll(string(own), "hostname: wk1", "hostname: cp1")),
			"differs from cp1 in the CA of Kubernetes":                              withOtherCA(t, own),
		} {
			user := configFiles{"wk1": file}.user(lab, firstRun)
			lab.refuses(user.roll(policy), says, "wk1")
			// recast config diff says the same of who the machine would be, whichever nodes are named. The plan adds volumes.
			for _, nodes := range [][]string{nil, {"wk1"}} {
				res := valueOf(connected(t.Context(), user, func(s *session) (configs.Diffs, error) {
					return configs.Compare(t.Context(), s.project, s.machines, nodes...)
				}))(t)
				d := res.Nodes[len(res.Nodes)-1]
				plan := lab.planOf(user, "wk1", policy)
				require(t, d.Reset && len(d.Refused) != 0 && !res.Same && res.Differ == 1 && slices.Equal(d.Refused, plan.Refused[:min(len(d.Refused), len(plan.Refused))]) && strings.Contains(d.Refused[0], says),
					"config diff %v: %+v; the plan: %q", nodes, res, plan.Refused)
			}
		}
		user := configFiles{"wk1": own}.user(lab, firstRun)
		requirePlanned(t, lab.planOf(user, "wk1", policy), cluster.InstallReset)
		must(t, user.roll(policy)(t.Context()))
	})
}

// Keys in a file that no later roll could open are refused, for a node that runs, and for one that was reset.
func TestEncryptionOfAFile(t *testing.T) {
	long(t)
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

// What keeps a volume from working, or is for another node, is refused, and acceptLoss lifts none of that.
func TestFilesThatKeepAVolumeFromWorking(t *testing.T) {
	long(t)
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
			requireSays(t, strings.Join(n.Refused, "\n"), says)
		}
		for _, stale := range []bool{false, true} {
			if stale {
				lab.Patch(sim.PatchedExtension)
			}
			refused(edited("type: xfs", "type: ext4"), "has another filesystem (ext4) for UserVolumeConfig data, whose volume is on the disk sdb, with xfs")
			refused(encrypted, "has another encryption for UserVolumeConfig data, whose volume is on the disk sdb")
		}
		other := configFiles{"wk1": edited("hostname: wk1", "hostname: CP1.example.com")}
		requireNone(t, lab.planOf(other.user(lab, firstRun), "wk1", onlyWorker).Refused, "a file for all nodes is refused")
		other.set(t, "wk1", noReboot)
		refused(other["wk1"], "gives it the hostname cp1: is it the file of that node?")
		lab.reset("wk1", "STATE")
		refused(encrypted, "has another encryption for UserVolumeConfig data, whose volume on the disk sdb is not encrypted")
		change("scsi6=" + wk1Data + ",backup=0,iothread=1")(lab)
		refused(own, "the volume of scsi1 is also scsi6")
	})
}

func withOtherToken(file cluster.Secret) cluster.Secret {
	return regexp.MustCompile(`(?m)^(    token: ).*$`).ReplaceAll(file, []byte("${1}abcdef.0123456789abcdef"))
}

// withOtherCA is a worker's configuration with another certificate as the CA of Kubernetes.
func withOtherCA(t *testing.T, file cluster.Secret) cluster.Secret {
	t.Helper()
	certs := regexp.MustCompile(`crt: (\S+)`).FindAllSubmatch(file, -1)
	mustBe(t, len(certs) == 2, "%d certificates, not those of Talos and Kubernetes", len(certs))
	return cluster.Secret(strings.Replace(string(file), string(certs[1][1]), string(certs[0][1]), 1))
}

func (f configFiles) label(t testing.TB, node, value string) {
	t.Helper()
	f.set(t, node, "nodeLabels:\n        from-file: "+value)
}

// comment changes the bytes of a file, but not its content.
func (f configFiles) comment(node string) {
	f[node] = cluster.Secret("# kept in git\n" + string(f[node]))
}

func (l *Lab) relabel(node string) {
	l.t.Helper()
	l.editConfig(node, "machine:\n", "machine:\n    nodeLabels:\n        edited: \"true\"\n")
}

// staleFile is a file of wk1 from before the node got a label.
func staleFile(t *testing.T, lab *Lab) configFiles {
	t.Helper()
	config := lab.configOf("wk1")
	lab.relabel("wk1")
	lab.Patch(sim.PatchedExtension)
	return configFiles{"wk1": config}
}

func (f configFiles) user(lab *Lab, run string) *Client {
	c := lab.as(run)
	c.MachineConfig = f.read
	return c
}

// relabelled is what a plan shows for a file with a changed label and secret.
var relabelled = []config.Change{
	{Document: "v1alpha1", Path: "machine.env.SOME_TOKEN", Kind: config.Added, Wanted: config.Hidden},
	{Document: "v1alpha1", Path: "machine.nodeLabels.copied", Kind: config.Added, Wanted: config.Hidden},
	{Document: "v1alpha1", Path: "machine.nodeLabels.edited", Kind: config.Removed, Found: "true"},
	{Document: "v1alpha1", Path: "machine.nodeLabels.from-file", Kind: config.Added, Wanted: "fresh"},
}

const hushed = "nobody-may-see-this"

// secret changes a secret in the file, in two places.
func (f configFiles) secret(node string) {
	f[node] = cluster.Secret(strings.NewReplacer(
		"    nodeLabels:\n", "    nodeLabels:\n        copied: "+hushed+"\n", "machine:\n", "machine:\n    env: {SOME_TOKEN: "+hushed+"}\n",
	).Replace(string(f[node])))
}

var onlyWorker = planning.Policy{Only: []string{"wk1"}}

// The plan to confirm has what a file would change, without secrets or what recast sets itself, and the node gets it.
func TestAFileIsShown(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		files.label(t, "wk1", "fresh")
		files.secret("wk1")
		files["wk1"] = cluster.Secret(strings.ReplaceAll(string(files["wk1"]), "v1.35.4", "v1.36.1")) // a roll never changes Kubernetes
		user := files.user(lab, firstRun)
		var asked planning.NodePlan
		user.confirms(func(p planning.Plan) {
			asked = p.Work()[0]
			var out bytes.Buffer
			must(t, ui.WritePlan(&out, "json", p))
			require(t, !strings.Contains(out.String(), hushed), "it has the secret:\n%s", &out)
		})
		must(t, user.roll(onlyWorker)(t.Context()))
		mustBe(t, asked.ConfigFile != nil && asked.ConfigFile.Applied && asked.ConfigFile.Hash != "" && asked.ConfigFile.Runs != "",
			"the plan has %+v", asked.ConfigFile)
		requireSame(t, relabelled, asked.ConfigFile.Changes, "it shows (-want +got)")
		text := string(lab.configOf("wk1"))
		require(t, !strings.Contains(text, "edited") && strings.Contains(text, "from-file: fresh"),
			"the node does not run what the file says")
		requireNone(t, lab.savedConfigs(), "the journal still has")
		lab.Patch(sim.PatchedExtension)
		p := lab.planOf(user, "wk1", onlyWorker)
		require(t, p.ConfigFile != nil && len(p.ConfigFile.Changes) == 0, "once it runs the file: %+v", p.ConfigFile)
	})
}

// TestAFileThatIsNotAsShown stops the node's roll before anything is taken down.
func TestAFileThatIsNotAsShown(t *testing.T) {
	type story struct {
		meanwhile func(lab *Lab, files configFiles)
		want      string
		strategy  cluster.Strategy // "": the usual one
		none      bool             // there is no file at first
	}
	changed := func(l *Lab, f configFiles) { f.label(l.t, "wk1", "fresh") }
	eachLong(t, oneWorker(), map[string]story{
		"changed":           {meanwhile: changed, want: "its file in talos.machineConfigs was changed"},
		"changed, in place": {meanwhile: changed, want: "its file in talos.machineConfigs was changed", strategy: cluster.InPlace},
		"gone":              {meanwhile: func(_ *Lab, f configFiles) { delete(f, "wk1") }, want: "its file in talos.machineConfigs is gone"},
		"no YAML":           {meanwhile: func(_ *Lab, f configFiles) { f["wk1"] = cluster.Secret("{") }, want: "its file in talos.machineConfigs was changed"},
		"new":               {meanwhile: func(l *Lab, f configFiles) { f["wk1"] = l.configOf("wk1") }, want: "it has a file in talos.machineConfigs now", none: true},
		"the node's changed": {
			meanwhile: func(l *Lab, _ configFiles) { l.editConfig("wk1", "edited: \"true\"", "edited: \"false\"") },
			want:      "the configuration that it runs was changed",
		},
		"only a comment": {meanwhile: func(_ *Lab, f configFiles) { f.comment("wk1") }},
	}, func(t *testing.T, lab *Lab, s story) {
		if s.strategy != "" {
			strategy(s.strategy)(lab)
		}
		files := staleFile(t, lab)
		if s.none {
			delete(files, "wk1")
		}
		user := files.user(lab, firstRun)
		from := 0
		user.confirms(func(planning.Plan) {
			s.meanwhile(lab, files)
			from = len(lab.Recorder.Calls())
		})
		err := user.roll(onlyWorker)(t.Context())
		if s.want == "" {
			must(t, err)
			return
		}
		requireRefused(t, err, "node wk1: "+s.want+" since the plan was made: what the plan showed is no longer what would be applied")
		require(t, fault.CodeOf(err) == fault.PlanMoved, "its code is %s", fault.CodeOf(err))
		lab.requireLeftAlone(from, "wk1")
		requireNone(t, lab.savedConfigs(), "the journal has")
	})
}

// A resumed node gets the file that was shown, from the journal or if it is the same, else its old system disk first.
func TestResumeKeepsToTheFile(t *testing.T) {
	type story struct {
		journal, changed bool
		first            cluster.Strategy
		says             string // text in the plan of the unfinished work
		runs             string
	}
	eachLong(t, oneWorker(), map[string]story{
		"here":                            {true, false, cluster.Recreate, "", "from-file: first"},
		"here, the file was changed":      {true, true, cluster.Recreate, "it gets the configuration that run 20000101-0000-0001 remembered", "from-file: second"}, // which it gets then
		"elsewhere":                       {false, false, cluster.Recreate, "the file is the one that run 20000101-0000-0001 remembered", "from-file: first"},
		"elsewhere, the file was changed": {false, true, cluster.PutBack, "its file in talos.machineConfigs is not the configuration that run 20000101-0000-0001 remembered", "from-file: second"},
	}, func(t *testing.T, lab *Lab, s story) {
		files := staleFile(t, lab)
		before := files["wk1"]
		files.label(t, "wk1", "first")
		first := files.user(lab, firstRun)
		first.killedAt(t, after("delete-vm"), first.roll(onlyWorker))
		if !s.journal {
			lab.loseJournal()
		}
		if s.changed {
			files["wk1"] = before
			files.label(t, "wk1", "second")
		}
		second := files.user(lab, secondRun)
		var said []string
		second.confirms(func(p planning.Plan) {
			n := p.Work()[0]
			about := string(n.Strategy) + " " + n.Why + " " + strings.Join(n.Notes, " ")
			if n.ConfigFile != nil {
				about += " " + n.ConfigFile.Uncompared
			}
			said = append(said, about)
		})
		must(t, second.roll(onlyWorker)(t.Context()))
		require(t, len(said) != 0 && strings.HasPrefix(said[0], string(s.first)+" ") && strings.Contains(said[0], s.says),
			"the plans were %q", said)
		require(t, strings.Contains(string(lab.configOf("wk1")), s.runs), "it does not run %q", s.runs)
	})
}

// A reset machine has no configuration to compare its file with; it gets the file of the plan, or none.
func TestResetKeepsToTheFile(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		text := lab.configOf("wk1")
		files := configFiles{"wk1": text}
		lab.reset("wk1", "STATE")
		policy := lab.confirmed("wk1")
		user := files.user(lab, firstRun).confirms(func(p planning.Plan) {
			n := p.Work()[0]
			f := n.ConfigFile
			require(t, n.Strategy == cluster.InstallReset && f != nil && f.Applied && f.Uncompared == "the machine has no configuration",
				"%s: %+v", n.Strategy, f)
			files.label(t, "wk1", "fresh")
		})
		requireRefused(t, user.roll(policy)(t.Context()), "node wk1: its file in talos.machineConfigs was changed since the plan was made")
		files["wk1"] = text
		user.Confirm = nil
		must(t, user.roll(policy)(t.Context()))
		lab.requireServing("wk1")
	})
}

func (l *Lab) savedConfigs() []string {
	l.t.Helper()
	return valueOf(filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret")))(l.t)
}

// A configuration in the journal is not used unverified: not if it is another valid one, nor without its checksum.
func TestDamagedConfigIsNotApplied(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func([]byte) []byte{
		"other bytes":   func(b []byte) []byte { return append(b, "# \n"...) },
		"cut off":       func(b []byte) []byte { return b[:len(b)/2] },
		"empty":         func([]byte) []byte { return nil },
		"without a sum": nil,
	}, func(t *testing.T, lab *Lab, damage func([]byte) []byte) {
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollKilled(after("delete-vm"), onlyWorker)
		files := lab.savedConfigs()
		mustBe(t, len(files) == 1, "the journal has %q", files)
		why := "its old system disk is put back: the machine configuration in the journal is damaged: its SHA-256 is "
		if damage != nil {
			must(t, os.WriteFile(files[0], damage(readFile(t, files[0])), 0o600))
		} else {
			lab.editRecord("wk1", func(rec *parking.Record) { rec.Config = "" })
			why = "says none"
		}
		requirePlanned(t, lab.planOf(lab.second(), "wk1", planning.Policy{}), cluster.PutBack, why)
		lab.second().rollTo(t, onlyWorker)
		requireNone(t, lab.savedConfigs(), "the journal still has")
	})
}

// However a node is completed, no machine configuration is left in the journals.
func TestConfigsAreForgotten(t *testing.T) {
	roll := func(l *Lab) { l.Client().mustRoll(onlyWorker) }
	killed := func(m moment, then func(l *Lab)) func(*Lab) {
		return func(l *Lab) {
			l.Client().rollKilled(m, onlyWorker)
			then(l)
		}
	}
	eachLong(t, oneWorker(), map[string]func(l *Lab){
		"roll": func(l *Lab) {
			during := 0
			l.Client().hears(whenStarted("bring-up/configure", func() { during = len(l.savedConfigs()) })).mustRoll(onlyWorker)
			require(l.t, during == 1, "during the roll there were %d", during)
		},
		"roll in place": all(strategy(cluster.InPlace), roll),
		"resumed roll":  killed(after("delete-vm"), roll),
		"recover":       killed(after("delete-vm"), func(l *Lab) { must(l.t, l.Client().giveUp("wk1")(l.t.Context())) }),
		"roll killed at its end, another with nothing to do": killed(moment{journal: "delete wk1/machine-config"}, func(l *Lab) {
			l.second().mustRoll(onlyWorker)
		}),
		"roll killed before the record, rollback of another": func(l *Lab) {
			roll(l)
			l.Patch(sim.PatchedExtension)
			l.second().rollKilled(moment{journal: "write wk1/memory"}, onlyWorker)
			must(l.t, l.as("20000101-0000-cafe").goBack("wk1")(l.t.Context()))
		},
	}, func(t *testing.T, lab *Lab, end func(l *Lab)) {
		lab.Patch(sim.PatchedExtension)
		end(lab)
		requireNone(t, lab.savedConfigs(), "the journals still have")
	})
}

// An invalid input gives one clear error with its remedy, and changes nothing in the datacentre.
func TestBadInput(t *testing.T) {
	type story struct {
		spoil edit
		kind  fault.Kind
		text  string // of the error: place and problem
		hint  string // the remedy; "" if the message contains it
	}
	play := func(t *testing.T, lab *Lab, s story) {
		lab.Patch(sim.PatchedExtension)
		s.spoil(lab)
		before := len(lab.Recorder.Calls())
		requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), s.kind, s.text, s.hint)
		lab.requireNothingSent(before, "factory")
	}
	eachInLab(t, oneWorker(), map[string]story{
		"no quorum": {func(l *Lab) { l.World.SetQuorum(false) }, fault.Refused, "no quorum", "pvecm status"},
	}, play)
	eachLong(t, oneWorker(), map[string]story{
		"unknown key":  {configuration("settle: 2s", "setle: 2s"), fault.Config, "recast.yaml:21:3: roll.setle: ", ""},
		"missing file": {configuration("schematics/storage.yaml", "schematics/nowhere.yaml"), fault.Config, "schematics/nowhere.yaml", ""},
		"unknown extension": {func(l *Lab) {
			l.Replace("schematics/storage.yaml", "siderolabs/iscsi-tools", "siderolabs/iscsi-tool")
			_, err := l.Client().Lock(l.t.Context(), pipeline.LockOptions{})
			requireFault(l.t, err, fault.Config, "schematics/storage.yaml:5:9", "siderolabs/iscsi-tools")
		}, fault.Config, "schematic storage has changed since it was locked", "recast lock"},
		"no lock": {func(l *Lab) { l.Replace("recast.lock", "", "removed") }, fault.Config, "recast.lock", "recast lock"},
		"a node that matches no VM": {func(l *Lab) {
			l.EditVM(9031, "smbios1", "uuid=00000000-0000-4000-8000-000000000000")
		}, fault.Config, "node wk1: no VM has its SMBIOS UUID 5ec0ffee-0000-4000-8000-000000009031", "VM.Audit"},
		"a node that matches two VMs": {func(l *Lab) {
			l.DefineVM(9050, map[string]string{"name": "clone", "smbios1": "uuid=5EC0FFEE-0000-4000-8000-000000009031"})
		}, fault.Config, "node wk1: 2 VMs have its SMBIOS UUID", "a UUID of its own"},
		"a VMID of another VM": {
			configuration("vmid: 9031", "vmid: 9032"), fault.Refused,
			"node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009031 belongs to VM 9031", "nodes[].vmid",
		},
		"a node that Kubernetes does not know": {
			configuration("{name: wk1,", "{name: wk7,"), fault.Config, "node wk7: Kubernetes knows no node of that name", "cp1 wk1",
		},
		"full storage": {func(l *Lab) { l.World.FillStorage(sim.ISOStorage) }, fault.Refused, "isos", ""},
		"an ACL entry that would go with the VM": {func(l *Lab) {
			strategy(cluster.Recreate)(l)
			l.World.Grant(world.ACL{Path: "/vms/9031", Who: "recast@pve!lab", Role: "Recast", Propagate: true})
		}, fault.Refused, "wk1: the VM has an ACL entry at /vms/9031", "--exclude"},
	}, play)
}

// TestOneNodeDoesNotMatch: a copied, restored or lost VM keeps nobody from seeing what the other nodes are.
func TestOneNodeDoesNotMatch(t *testing.T) {
	type story struct {
		spoil edit
		says  string
	}
	eachInLab(t, sim.Options{ControlPlanes: 1, Workers: 2}, map[string]story{
		"no VM": {func(l *Lab) {
			l.EditVM(9031, "smbios1", "uuid=00000000-0000-4000-8000-000000000000")
		}, "no VM has its SMBIOS UUID"},
		"two VMs": {func(l *Lab) {
			l.DefineVM(9050, map[string]string{"name": "clone", "smbios1": "uuid=5EC0FFEE-0000-4000-8000-000000009031"})
		}, "2 VMs have its SMBIOS UUID"},
		"another VM": {configuration("vmid: 9031", "vmid: 9050"), "belongs to VM 9031"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		c.spoil(lab)
		res := valueOf(lab.Client().Drift(t.Context()))(t)
		for _, n := range res.Nodes {
			unread := strings.Join(n.Unread, "; ")
			require(t, (n.Node == "wk1") == strings.Contains(unread, c.says), "%s: %q", n.Node, unread)
			require(t, (n.Node == "wk2") == n.Stale, "%s is stale: %t", n.Node, n.Stale)
		}
		p, err := lab.Client().Plan(t.Context(), planning.Policy{Only: []string{"wk1", "wk2"}})
		mustBe(t, err != nil && strings.Contains(err.Error(), c.says) && len(p.Nodes) == 2, "planned %d nodes: %v", len(p.Nodes), err)
		for _, n := range p.Nodes {
			refused := strings.Join(n.Refused, "; ")
			require(t, (n.Node == "wk1") == strings.Contains(refused, c.says) && (n.Node == "wk2") == (n.Strategy == cluster.Recreate), "%s: %s, %q", n.Node, n.Strategy, refused)
		}
	})
}

// ofClaim says whether a request only creates, beats or removes the claim.
func ofClaim(call record.Call) bool {
	const vms = "/api2/json/nodes/pve1/qemu"
	return call.Proto == "proxmox" && (call.Path == vms && call.Method == "POST" || strings.HasPrefix(call.Path, vms+"/9000"))
}
