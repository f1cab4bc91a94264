package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestAFileWithNoWayOut: what a file brings, and no later roll could take back, is refused unless the node has it already.
func TestAFileWithNoWayOut(t *testing.T) {
	t.Parallel()
	const (
		locked = "volume u-data is encrypted with lockToState and would be unreadable once STATE is gone"
		tpm    = "volume STATE is encrypted with a TPM key, but the VM has no tpmstate0"
		omni   = "its file in talos.machineConfigs has SideroLinkConfig, which joins the machine to Omni"
	)
	volume := func(match string) string {
		return "---\nkind: UserVolumeConfig\nname: data\nprovisioning: {diskSelector: {match: " + match + "}}\n"
	}
	toState := cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}, LockToState: true}
	for name, tc := range map[string]struct {
		runs, adds string
		want       string
		seals, has cluster.Encryption
	}{
		"a key locked to STATE":         {adds: volume("'!system_disk'"), seals: toState, want: locked},
		"one that goes with STATE":      {adds: volume("system_disk"), seals: toState},
		"a key that is not locked":      {adds: volume("'!system_disk'"), seals: cluster.Encryption{Volume: "u-data", Keys: []string{"nodeID"}}},
		"a key that it has already":     {adds: volume("'!system_disk'"), seals: toState, has: toState},
		"a TPM that the VM has not":     {seals: cluster.Encryption{Volume: "STATE", Keys: []string{"tpm"}}, want: tpm},
		"Omni":                          {adds: "---\nkind: SideroLinkConfig\napiVersion: v1alpha1\n", want: omni},
		"Omni already":                  {runs: "---\nkind: SideroLinkConfig\n", adds: "---\nkind: SideroLinkConfig\napiVersion: v1alpha1\n"},
		"an argument of Omni, for GRUB": {adds: "argument", want: "adds the kernel argument siderolink.api, with which the node could neither be recreated nor reimaged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := NodePlan{Strategy: cluster.ApplyConfig, Found: observe.Found{VM: &cluster.VM{Config: map[string]string{}}}}
			m := clustertest.InSync()
			m.SystemDisk, m.Configs.Active = "sda", cluster.Secret("machine: {type: worker}\n"+tc.runs)
			if tc.has.Volume != "" {
				m.Encryption = []cluster.Encryption{tc.has}
			}
			n.Found.Machine = &m
			text := "machine: {type: worker}\n" + tc.adds
			if tc.adds == "argument" {
				text = "machine: {type: worker, install: {extraKernelArgs: ['siderolink.api=grpc://x']}}\n"
			}
			was, errWas := config.Parse(m.Configs.Active)
			is, errIs := config.Parse([]byte(text))
			if errWas != nil || errIs != nil {
				t.Fatal(errWas, errIs)
			}
			file := cluster.FoundFile{ConfigFile: cluster.ConfigFile{Changes: config.Compare(was, is)}, Omni: is.Has(cluster.OmniDocument)}
			if tc.seals.Volume != "" {
				file.Encryption = []cluster.Encryption{tc.seals}
			}
			got := strings.Join(n.refusedConfig(file), "\n")
			if !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
		})
	}
}
