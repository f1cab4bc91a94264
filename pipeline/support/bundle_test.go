package support

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/bundle"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// planted are secrets of every kind, each in its real place; none of their bytes may get into a bundle.
var planted = map[string]string{
	"the token":             "6f1d3c58-1111-4222-8333-0123456789ab",
	"another token":         "9e8d7c6b-5555-4666-8777-ba9876543210",
	"a machine's CA key":    base64.StdEncoding.EncodeToString([]byte("-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIPlantedMachineKey\n-----END ED25519 PRIVATE KEY-----\n")),
	"a bootstrap token":     "plnt3d.0123456789abcdef",
	"the talosconfig's key": base64.StdEncoding.EncodeToString([]byte("-----BEGIN ED25519 PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIPlantedTalosconfig\n-----END ED25519 PRIVATE KEY-----\n")),
	"the kubeconfig's key":  base64.StdEncoding.EncodeToString([]byte("planted kubeconfig key, which is long enough to be one")),
	"cipassword":            "planted-cipassword",
	"sshkeys":               "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIPlanted",
	"a webhook":             "T000/B000/plantedwebhookpath",
	"what a hook has said":  "planted hook output",
	"notes of a VM":         "planted note of the VM",
	"an argument of a hook": "--pass=planted-argument",
	"a kernel argument":     "talos.config=https://conf.example/planted",
	"a header":              "planted-header-value",
	"a hook of before":      "./quiet.sh planted-older-argument", // which recast.yaml does not name any more
	"a gate of before":      "./check.sh planted-gate-argument",
	"what was said last":    "planted last words",
	"a serial's URL":        "//conf.example/planted-serial",
	"a forge's token":       "ghp_0123456789abcdefghijPlanted",
	"a query":               "planted=query",
}

// config is a recast.yaml with secrets that should not be in one.
func plantedConfig() []byte {
	return fmt.Appendf(nil, `# token: %s
version: 1
cluster: c1
talos: {version: v1.13.9}
images: {iso: {storage: [isos]}}
proxmox:
  endpoints: ["https://root:%s@pve1.example:8006?x=%s"]
  token: root@pam!roll=%s
nodes: [{name: wk1, schematic: default, vmid: 9031}]
roll:
  hooks: {beforeNode: [{command: [./silence.sh, "%s"]}]}
notify: [{url: "https://hooks.example/%s"}]
`, planted["another token"], planted["cipassword"], planted["another token"], planted["the token"], planted["an argument of a hook"], planted["a webhook"])
}

func project(t *testing.T) pipeline.Project {
	return pipeline.Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1", Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: 9089, Last: 9099}}}}
}

func plantedMachineConfig() []byte {
	return fmt.Appendf(nil, "machine:\n  token: %s\n  ca:\n    key: %s\n", planted["a bootstrap token"], planted["a machine's CA key"])
}

func plantRun(t *testing.T, p pipeline.Project) {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "20261122-0101-aaaa"}))(t)
	vm := map[string]any{"VM": map[string]any{"Config": map[string]string{"cipassword": planted["cipassword"], "sshkeys": planted["sshkeys"], "description": planted["notes of a VM"]}}}
	refused := fmt.Sprintf("the SMBIOS serial %q would configure the blank machine", "ds=nocloud;s=http:"+planted["a serial's URL"])
	plan := planning.Plan{Cluster: "c1", ID: "abcd", Nodes: []planning.NodePlan{{Node: "wk1", Refused: []string{refused}}}, Hooks: cluster.Hooks{BeforeNode: []cluster.Hook{{Command: cluster.CommandGate{Args: []string{"./silence.sh", planted["an argument of a hook"]}}}}}}
	log := strings.Join([]string{
		`{"time":"t","msg":"request","method":"POST","path":"/nodes/pve1/qemu","header":"` + planted["a header"] + `","step":"roll/workers/wk1/take-down/stop"}`,
		`{"msg":"step","step":"roll/workers/wk1/bring-up/configure","error":"sent Authorization: PVEAPIToken=root@pam!roll=` + planted["another token"] + ` and got 401","code":"credentials"}`,
		`{"msg":"step","step":"roll/workers/wk1/hooks/1","status":"note","text":"` + planted["what a hook has said"] + `"}`,
		`{"msg":"command","status":"ended","error":"hook \"x\": ./x ended with 1: ` + planted["what a hook has said"] + `"}`,
		`{"msg":"step","step":"roll/workers/wk1/run-hooks","status":"started","title":"run the hooks before wk1 goes: ` + planted["a hook of before"] + `"}`,
		`{"msg":"command","status":"ended","error":"roll/workers/wk1/ask-gates: gate \"` + planted["a gate of before"] + `\": gave up after 1m0s; last seen: ` + planted["what was said last"] + `"}`,
		`{"msg":"step","step":"roll/workers/wk1/bring-up/join","error":"Get \"https://cp1:6443/api?` + planted["a query"] + `\": dial\n` + planted["a forge's token"] + `"}`,
		`{"msg":"step","step":"roll/workers/wk1/take-down/drain","text":"it says cipassword: ` + planted["cipassword"] + `, and ` + planted["a machine's CA key"] + `"}`,
		`{"msg":"cut off by a ki`,
	}, "\n")
	must.Do(t, errors.Join(
		j.PutSecret(roll.MachineConfigKey("wk1"), plantedMachineConfig()), j.Put("node/wk1/memory", vm), j.Put("plan", plan),
		os.WriteFile(filepath.Join(j.Dir(), "log.jsonl"), []byte(log), 0o600),
		j.Finish("failed: hook: ./x ended with 1: "+planted["what a hook has said"]), j.Close(),
	))
}

// plantStopped creates a run that ended with a hook that hung.
func plantStopped(t *testing.T, p pipeline.Project) {
	t.Helper()
	j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "20261122-0102-bbbb"})
	if err == nil {
		err = errors.Join(j.Finish(stopped()), j.Close())
	}
	must.Do(t, err)
}

func stopped() string {
	return fmt.Sprintf("failed: roll/workers/wk1/run-hooks: hook %q: ./quiet.sh was stopped after 1m0s: it said last: %s: its timeout of 1m0s is over\nand more",
		planted["a hook of before"], planted["what was said last"])
}

func plantLock(t *testing.T, p pipeline.Project) {
	t.Helper()
	b, err := os.ReadFile("../../schematics/testdata/recast.lock")
	if err == nil {
		err = os.WriteFile(p.LockFile(), append(b, []byte("extra: "+planted["a kernel argument"]+"\n")...), 0o600)
	}
	must.Do(t, err)
}

func plantedVMs(t *testing.T) []cluster.VM {
	t.Helper()
	hush := map[string]string{
		"cipassword": planted["cipassword"], "sshkeys": planted["sshkeys"], "ciuser": planted["cipassword"], "description": planted["notes of a VM"],
		"args": "-fw_cfg " + planted["a kernel argument"], "smbios1": "uuid=u-wk1,serial=" + base64.StdEncoding.EncodeToString([]byte("ds=nocloud;s="+planted["a kernel argument"])),
		"cores": "2", "scsi0": "fast:vm-9031-disk-0,size=10G",
	}
	description := must.Get(parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes, Memory: base64.RawURLEncoding.EncodeToString([]byte(planted["cipassword"]))}.Description())(t)
	return []cluster.VM{
		{ID: 9031, Name: "wk1", Host: "pve1", Config: hush},
		{ID: 9090, Name: "recast-parking-wk1", Host: "pve1", Config: map[string]string{"description": description, "scsi1": "fast:vm-9090-disk-0"}},
		{ID: 500, Name: "someone-elses", Host: "pve1", Config: hush},
	}
}

// world is sources whose every answer has secrets in it.
func plantedSources(t *testing.T, vms []cluster.VM, fails error) Sources {
	t.Helper()
	seen := observe.Observation{Found: []observe.Found{{
		Name: "wk1", VM: &vms[0], Addr: netip.MustParseAddr("10.0.0.31"), Errs: []error{fails},
		Machine: &cluster.Machine{RunningSystem: cluster.RunningSystem{
			TalosVersion: "v1.13.9", ConfigArgs: []string{planted["a kernel argument"]}, Schematic: cluster.SchematicEntry{ID: "5c4e", YAML: planted["a kernel argument"]},
		}},
	}}}
	return Sources{
		Version: map[string]string{"recast": "v1"}, Config: plantedConfig(), Invalid: fails,
		Secrets: []string{planted["the token"], planted["the talosconfig's key"], planted["the kubeconfig's key"]},
		Status: func(context.Context) (pipeline.StatusResult, error) {
			return pipeline.StatusResult{Cluster: "c1", LastRun: &pipeline.RunStatus{Outcome: stopped()}, Kubernetes: fails.Error(), Problems: []string{fails.Error()}}, fails
		},
		Doctor: func(context.Context) checkup.Result {
			return checkup.Result{Cluster: "c1", Checks: []checkup.Check{
				{Group: checkup.GroupProxmox, What: "API", State: checkup.Problem, Seen: fails.Error()},
				{Group: checkup.GroupHooks, What: planted["a hook of before"], State: checkup.OK, Seen: planted["a hook of before"]},
				{Group: checkup.GroupGates, What: planted["a gate of before"], State: checkup.Warning, Seen: planted["what was said last"], Remedy: []string{planted["a gate of before"]}},
			}}
		},
		VMs:     func(context.Context) ([]cluster.VM, error) { return vms, fails },
		Observe: func(context.Context) (observe.Observation, error) { return seen, nil },
	}
}

func TestBundleHasNoSecrets(t *testing.T) {
	t.Parallel()
	p := project(t)
	p.Config.Nodes = []config.Node{{Name: "wk1", VMID: 9031}}
	p.Config.Talos.MachineConfigs.Path = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(p.Config.Talos.MachineConfigs.Path, "wk1.yaml"), plantedMachineConfig(), 0o600))
	plantRun(t, p)
	plantStopped(t, p)
	plantLock(t, p)
	fails := fmt.Errorf("Get \"https://cp1:6443/api?%s\": dial\n%s\nGET https://x:%s@pve1/?a=%s: root@pam!roll=%s: %s %s", planted["a query"], planted["a forge's token"], planted["cipassword"], planted["another token"], planted["the token"], planted["the talosconfig's key"], planted["the kubeconfig's key"])
	b := Bundle(t.Context(), &p, plantedSources(t, plantedVMs(t), fails), time.Now())
	for _, f := range b.Files() {
		for what, secret := range planted {
			plain, _ := base64.StdEncoding.DecodeString(secret)
			for _, form := range append([]string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret))}, strings.Split(string(plain), "\n")...) {
				must.Hold(t, len(form) <= 8 || strings.HasPrefix(form, "-----") || !bytes.Contains(f.Data, []byte(form)),
					"%s has %s:\n%s", f.Name, what, f.Data)
			}
		}
		requireJSON(t, f)
	}
	requireIn(t, b, map[string][]string{
		"README.txt":                        {"Review it before you share it", "vms.json ("},
		"version.json":                      {`"recast": "v1"`},
		"recast.yaml":                       {"cluster: c1", "name: wk1", "vmid: 9031"},
		"recast.lock":                       {"talos: v1.13.9", "schematicID: "},
		"runs.json":                         {`"ID": "20261122-0101-aaaa"`, "ended with 1: [left out]", `wk1/run-hooks: hook [left out]\nand more"`},
		"runs/20261122-0101-aaaa/keys.txt":  {"machine-config", "node/wk1/memory"},
		"runs/20261122-0101-aaaa/plan.json": {`"id": "abcd"`, `the SMBIOS serial \"ds=nocloud;[redacted]\" would`},
		"runs/20261122-0101-aaaa/log.jsonl": {`"method":"POST"`, `"code":"credentials"`, `Get \"https://cp1:6443/api?[redacted]\": dial\n[redacted]"`},
		"status.json":                       {`"cluster": "c1"`},
		"doctor.json":                       {`"what": "API"`, `"group": "gates"`, `"state": "warning"`},
		"vms.json":                          {`"vmid": 9031`, `"cores": "2"`, `"uuid": "u-wk1"`, `"sshkeys"`, `"run": "r1"`},
		"nodes.json":                        {`"talos": "v1.13.9"`, `"schematic": "5c4e"`},
		"unread.txt":                        {"recast.lock can't be used", "VMs: ", "status: "},
	})
	must.Hold(t, !strings.Contains(fileIn(b, "vms.json"), "someone-elses"), "vms.json has a VM that is none of ours")
}

// requireJSON requires that a file named JSON contains JSON, or lines of it.
func requireJSON(t *testing.T, f bundle.File) {
	t.Helper()
	docs := []string{string(f.Data)}
	switch filepath.Ext(f.Name) {
	case ".json":
	case ".jsonl":
		docs = strings.Split(strings.TrimSpace(docs[0]), "\n")
	default:
		return
	}
	for _, doc := range docs {
		must.Hold(t, json.Valid([]byte(doc)), "%s holds what is no JSON:\n%s", f.Name, doc)
	}
}

func requireIn(t *testing.T, b *bundle.Bundle, want map[string][]string) {
	t.Helper()
	for name, texts := range want {
		must.Contain(t, name, fileIn(b, name), texts...)
	}
}

func fileIn(b *bundle.Bundle, name string) string {
	i := slices.IndexFunc(b.Files(), func(f bundle.File) bool { return f.Name == name })
	if i < 0 {
		return ""
	}
	return string(b.Files()[i].Data)
}

// If nothing can be read there is still a bundle, which says so.
func TestEmptyBundle(t *testing.T) {
	t.Parallel()
	b := Bundle(t.Context(), nil, Sources{Invalid: errors.New("recast.yaml: no such file")}, time.Now())
	requireIn(t, b, map[string][]string{"unread.txt": {"no such file"}, "README.txt": {"unread.txt ("}})

	p := project(t)
	fails := errors.New("connection refused")
	src := Sources{
		Config: []byte("a: [broken"), Status: func(context.Context) (pipeline.StatusResult, error) { return pipeline.StatusResult{}, fails },
		VMs:     func(context.Context) ([]cluster.VM, error) { return nil, fails },
		Observe: func(context.Context) (observe.Observation, error) { return observe.Observation{}, fails },
	}
	b = Bundle(t.Context(), &p, src, time.Now())
	requireIn(t, b, map[string][]string{"unread.txt": {"recast.yaml: it is not YAML", "VMs: connection refused", "nodes: connection refused", "status: connection refused"}})
}
