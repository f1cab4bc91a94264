package adopt_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/terraform"
	"github.com/recast-sh/recast/pipeline/adopt"
)

var update = flag.Bool("update", false, "write the golden files anew")

func document(t *testing.T, name string) *terraform.Document {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := terraform.Read(name+".json", text)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// answers are what none of the layouts says.
func answers(more func(*adopt.Options)) adopt.Options {
	o := adopt.Options{Name: "recast.yaml", Endpoints: []string{"https://pve1.example:8006"}, VMIDs: "9000-9099"}
	more(&o)
	return o
}

// layouts are those of modules that people use.
var layouts = map[string]struct {
	from string
	o    func(*adopt.Options)
}{
	"bpg-foreach": {"bpg-foreach", func(o *adopt.Options) { o.Cluster = "home" }},
	"bpg-count-clone": {"bpg-count-clone", func(o *adopt.Options) {
		o.Endpoints, o.Schematic, o.Talos, o.Platform, o.ISOStorage = nil, "base.yaml", "v1.13.9", "nocloud", []string{"isos"}
	}},
	"telmate-disks": {"telmate-disks", func(o *adopt.Options) {
		o.Cluster, o.Schematic, o.Talos, o.Platform, o.ISOStorage = "home", "base.yaml", "v1.13.9", "metal", []string{"local"}
	}},
	"bpg-talos":      {"bpg-talos", func(*adopt.Options) {}},
	"nested-cluster": {"nested", func(o *adopt.Options) { o.Cluster = "lab" }},
	"nested-only":    {"nested", func(o *adopt.Options) { o.Only = []string{`module.cluster["prod"]`} }},
}

// TestLayouts adopts each layout, and has config read what was written.
func TestLayouts(t *testing.T) {
	t.Parallel()
	for name, tc := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := answers(tc.o)
			o.Dir = filepath.Join(t.TempDir(), "new")
			if o.Schematic != "" {
				o.Schematic = filepath.Join(filepath.Dir(o.Dir), o.Schematic)
				if err := os.WriteFile(o.Schematic, []byte("customization: {}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			res, err := adopt.Adopt(document(t, tc.from), o)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(o.Dir, "recast.yaml")
			c, err := config.Load(file, config.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(c.Nodes) != len(res.Nodes) || len(c.Nodes) < 2 {
				t.Errorf("recast.yaml has %d nodes, and %d were found", len(c.Nodes), len(res.Nodes))
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var blocks strings.Builder
			for _, k := range res.Keep {
				if k.Resets {
					blocks.WriteString("# resets its machine\n")
				}
				blocks.WriteString("# " + strings.Join(k.Nodes, ", ") + "\n" + k.Ignore + k.Removed)
			}
			golden(t, name+".yaml", string(text))
			golden(t, name+".tf", blocks.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestUnanswered names all that is missing at once, and writes nothing.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from string
		o    adopt.Options
		want []string
	}{
		"nothing given": {"telmate-disks", adopt.Options{}, []string{
			"what the cluster is called", "which Talos", "which platform", "images of talos-cp-1, talos-wk-1 contain", "where the Proxmox API is", "takes the boot ISOs", "unused VMIDs",
		}},
		"several clusters":     {"nested", adopt.Options{}, []string{"several clusters: lab, prod"}},
		"no such cluster":      {"nested", adopt.Options{Cluster: "other"}, []string{"no VM of bpg/proxmox"}},
		"nothing below":        {"nested", adopt.Options{Only: []string{"module.clus"}}, []string{"no VM of bpg/proxmox"}},
		"a range that is used": {"bpg-foreach", adopt.Options{Cluster: "home", Endpoints: []string{"https://pve1"}, VMIDs: "9200-9299"}, []string{`9201 is the number of proxmox_virtual_environment_vm.data["wk1"]`}},
		"another platform":     {"bpg-talos", adopt.Options{Platform: "aws", Endpoints: []string{"https://pve1"}, VMIDs: "9000-9099"}, []string{"images.platform"}},
		"no range":             {"bpg-foreach", adopt.Options{Cluster: "home", Endpoints: []string{"https://pve1"}, VMIDs: "9"}, []string{"--vmids"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tc.o
			o.Dir, o.Name = t.TempDir(), "recast.yaml"
			_, err := adopt.Adopt(document(t, tc.from), o)
			if err == nil || fault.KindOf(err) != fault.Config || len(fault.Hints(err)) == 0 {
				t.Fatalf("err = %v, hints %q", err, fault.Hints(err))
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if there, _ := os.ReadDir(o.Dir); len(there) > 0 {
				t.Errorf("files were written: %v", there)
			}
		})
	}
}

// TestModulesAreNotMerged: VMs in several modules are one cluster only if something says so.
func TestModulesAreNotMerged(t *testing.T) {
	t.Parallel()
	doc := document(t, "nested")
	doc.Machines, doc.Clusters = nil, nil
	o := answers(func(*adopt.Options) {})
	if _, err := adopt.Adopt(doc, o); err == nil || !strings.Contains(err.Error(), "4 modules") {
		t.Errorf("err = %v", err)
	}
	o.Only, o.Cluster = []string{`module.cluster["lab"]`}, "lab"
	res, err := adopt.Adopt(doc, o)
	if err != nil || len(res.Nodes) != 2 || res.Nodes[0].Name != "lab-cp1" || res.Nodes[0].Role != "" {
		t.Errorf("%v, err = %v", res.Nodes, err)
	}
}

// TestMachinesOfOmniAreRefused: joined by a document of the configuration, or by a kernel argument.
func TestMachinesOfOmniAreRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*terraform.Document){
		"configuration": func(d *terraform.Document) { d.Machines[0].Omni = true },
		"image": func(d *terraform.Document) {
			d.Schematics[0].YAML = "customization: {extraKernelArgs: ['siderolink.api=grpc://x']}"
		},
	} {
		doc := document(t, "bpg-talos")
		change(doc)
		_, err := adopt.Adopt(doc, answers(func(*adopt.Options) {}))
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "joins it to Omni") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAHolderIsNoNode, whatever its tags say; and a tainted VM is a question.
func TestAHolderIsNoNode(t *testing.T) {
	t.Parallel()
	doc := document(t, "bpg-foreach")
	for i := range doc.VMs {
		doc.VMs[i].Shape.Tags, doc.VMs[i].Tainted = []string{"talos"}, doc.VMs[i].Name == "cp1"
	}
	res, err := adopt.Adopt(doc, answers(func(o *adopt.Options) { o.Cluster, o.Schematic = "home", "base.yaml" }))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Nodes) != 3 || len(res.Left) != 1 || !strings.Contains(res.Left[0], "VM 9201): it owns disks of other VMs") {
		t.Errorf("%v, left %q", res.Nodes, res.Left)
	}
	if res.Questions[0].Command != `terraform untaint 'proxmox_virtual_environment_vm.node["cp1"]'` {
		t.Errorf("%v", res.Questions)
	}
}

func TestNothingIsReplaced(t *testing.T) {
	t.Parallel()
	o := answers(func(o *adopt.Options) { o.Dir = t.TempDir() })
	mine := filepath.Join(o.Dir, "recast.yaml")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := adopt.Adopt(document(t, "bpg-talos"), o); err == nil || !strings.Contains(err.Error(), "recast.yaml is there already") {
		t.Errorf("err = %v", err)
	}
	o.Force = true
	if _, err := adopt.Adopt(document(t, "bpg-talos"), o); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(mine); !strings.Contains(string(text), "vmClasses:") {
		t.Errorf("%s", text)
	}
}

// TestNoSecretIsShown: a state holds machine configurations and keys.
func TestNoSecretIsShown(t *testing.T) {
	t.Parallel()
	res, err := adopt.Adopt(document(t, "bpg-talos"), answers(func(*adopt.Options) {}))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Files {
		if strings.Contains(string(f.Content), "abc.secret") {
			t.Errorf("%s has the token of the machine configuration:\n%s", f.Name, f.Content)
		}
	}
}
