package ui

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/pipeline"
)

func TestWritePrune(t *testing.T) {
	t.Parallel()
	iso := func(name string, mib int64) images.StoredISO {
		return images.StoredISO{Host: "pve1", Storage: "local", Name: name, SizeBytes: mib << 20}
	}
	kept := images.Verdict{StoredISO: iso("a.iso", 100), Keep: []string{`VM 7 "x" on pve1 refers to it`, "recast.lock has it"}}
	gone := images.Verdict{StoredISO: iso("b.iso", 200), Removed: true}
	goes := images.Verdict{StoredISO: iso("c.iso", 300)}
	for name, tc := range map[string]struct {
		rep  pipeline.PruneReport
		want string
	}{
		"nothing there": {pipeline.PruneReport{}, "0 ISOs, none to remove\n"},
		"before": {
			pipeline.PruneReport{ISOs: []images.Verdict{kept, goes}, Unseen: []string{"pve2 is offline"}},
			"stays    a.iso on storage local on pve1 (100 MiB)\n         VM 7 \"x\" on pve1 refers to it; recast.lock has it\n" +
				"goes     c.iso on storage local on pve1 (300 MiB)\nnote: pve2 is offline\n1 of 2 ISOs can go, 300 MiB\n",
		},
		"after": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone}},
			"removed  b.iso on storage local on pve1 (200 MiB)\n1 of 1 ISOs removed, 200 MiB\n",
		},
		"cut off": {
			pipeline.PruneReport{ISOs: []images.Verdict{gone, goes}},
			"removed  b.iso on storage local on pve1 (200 MiB)\ngoes     c.iso on storage local on pve1 (300 MiB)\n" +
				"1 of 2 ISOs removed, 200 MiB; 1 that could go are still there\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text, data bytes.Buffer
			if err := WritePrune(&text, "text", tc.rep); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, text.String()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
			if err := WritePrune(&data, "json", tc.rep); err != nil {
				t.Fatal(err)
			}
			var back pipeline.PruneReport
			if err := json.Unmarshal(data.Bytes(), &back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.rep, back); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}
