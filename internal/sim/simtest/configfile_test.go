package simtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

func (f configFiles) label(t testing.TB, node, value string) {
	t.Helper()
	f.set(t, node, "nodeLabels:\n        from-file: "+value)
}

// comment changes the bytes of a file, but not its content.
func (f configFiles) comment(node string) {
	f[node] = cluster.Secret("# kept in git\n" + string(f[node]))
}

// relabel gives a node another label, as talosctl patch would.
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

// TestAFileIsShown: the plan to confirm has what a file would change, without secrets, and then the
// node gets it. What recast sets itself is not shown.
func TestAFileIsShown(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		files.label(t, "wk1", "fresh")
		files.secret("wk1")
		files["wk1"] = cluster.Secret(strings.ReplaceAll(string(files["wk1"]), "v1.35.4", "v1.36.1")) // a roll never changes Kubernetes
		user := files.user(lab, firstRun)
		var asked planning.NodePlan
		user.Confirm = func(p planning.Plan) (bool, error) {
			asked = p.Work()[0]
			var out bytes.Buffer
			must(t, ui.WritePlan(&out, "json", p))
			require(t, !strings.Contains(out.String(), hushed), "it has the secret:\n%s", &out)
			return true, nil
		}
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
		require(t, p.ConfigFile != nil && len(p.ConfigFile.Changes) == 0,
			"once it runs what the file says, the plan has %+v", p.ConfigFile)
		lab.RequireIntact()
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
		user.Confirm = func(planning.Plan) (bool, error) {
			s.meanwhile(lab, files)
			from = len(lab.Recorder.Calls())
			return true, nil
		}
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

// TestResumeKeepsToTheFile that was shown: on this machine it is in the journal; elsewhere the
// file must still be the same, else the old system disk is put back first.
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
		second.Confirm = func(p planning.Plan) (bool, error) {
			n := p.Work()[0]
			about := string(n.Strategy) + " " + n.Why + " " + strings.Join(n.Notes, " ")
			if n.ConfigFile != nil {
				about += " " + n.ConfigFile.Uncompared
			}
			said = append(said, about)
			return true, nil
		}
		must(t, second.roll(onlyWorker)(t.Context()))
		require(t, len(said) != 0 && strings.HasPrefix(said[0], string(s.first)+" ") && strings.Contains(said[0], s.says),
			"the plans were %q", said)
		require(t, strings.Contains(string(lab.configOf("wk1")), s.runs), "it does not run %q", s.runs)
		lab.RequireIntact()
	})
}

// A reset machine has no configuration to compare its file with; it gets the file of the plan, or none.
func TestResetKeepsToTheFile(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		text := lab.configOf("wk1")
		files := configFiles{"wk1": text}
		lab.reset("wk1", "STATE")
		user := files.user(lab, firstRun)
		user.Confirm = func(p planning.Plan) (bool, error) {
			n := p.Work()[0]
			f := n.ConfigFile
			require(t, n.Strategy == cluster.InstallReset && f != nil && f.Applied && f.Uncompared == "the machine has no configuration",
				"%s: %+v", n.Strategy, f)
			files.label(t, "wk1", "fresh")
			return true, nil
		}
		requireRefused(t, user.roll(onlyWorker)(t.Context()), "node wk1: its file in talos.machineConfigs was changed since the plan was made")
		files["wk1"] = text
		user.Confirm = nil
		must(t, user.roll(onlyWorker)(t.Context()))
		lab.requireServing("wk1")
	})
}

// savedConfigs are the files of machine configurations in journals here.
func (l *Lab) savedConfigs() []string {
	l.t.Helper()
	return valueOf(filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret")))(l.t)
}

// TestDamagedConfigIsNotApplied changes the configuration that a killed roll has left in its journal, so that it is
// valid, but not the node's; or takes its checksum out of the record: it is not used unverified.
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

// TestConfigsAreForgotten checks that no machine configurations are left in the journals
// after each way in which a node is completed.
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

// badInput is a user's or the world's invalid input to a roll.
type badInput struct {
	spoil func(l *Lab)
	kind  fault.Kind
	text  string // of the error: place and problem
	hint  string // the remedy; "" if the message contains it
}

// TestBadInput rolls with an invalid input: there is one clear error with its remedy, and
// nothing in the datacentre has changed.
func TestBadInput(t *testing.T) {
	edit := func(file, old, fresh string) func(*Lab) { return func(l *Lab) { l.Replace(file, old, fresh) } }
	for name, bad := range map[string]badInput{
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
		"full storage": {func(l *Lab) { l.World.FillStorage(sim.ISOStorage) }, fault.Refused, "isos", ""},
		"an ACL entry that would go with the VM": {
			func(l *Lab) {
				l.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: recreate\n")
				l.World.Grant(world.ACL{Path: "/vms/9031", Who: "recast@pve!lab", Role: "Recast", Propagate: true})
			}, fault.Refused, "wk1: the VM has an ACL entry at /vms/9031", "--exclude",
		},
		"no quorum": {func(l *Lab) { l.World.SetQuorum(false) }, fault.Refused, "no quorum", "pvecm status"},
	} {
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
