package step_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/step"
)

// An event has the kind of its step, and none for a branch.
func TestKinds(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	r := step.Runner{Emit: func(e step.Event) { got[e.Path] = e.Kind }}
	err := r.Run(t.Context(), branch("roll", branch("wk1", leaf("drain", work), step.Step{ID: "scsi1", Kind: "park-disk", Do: work}), whole(branch("none"))))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"roll": "", "roll/wk1": "", "roll/wk1/drain": "drain", "roll/wk1/scsi1": "park-disk", "roll/none": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}
