package artefact_test

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

func TestUserData(t *testing.T) {
	t.Parallel()
	const config = "version: v1alpha1\n"
	iso := artefact.CloudInitISO([]byte(config))
	if got, ok := artefact.UserData(iso); !ok || string(got) != config {
		t.Errorf("user data %q, %t", got, ok)
	}
	if _, err := artefact.ReadISO(iso); err == nil {
		t.Error("it boots")
	}
	for name, b := range map[string][]byte{"nothing": nil, "text": make([]byte, 1<<17), "cut off": iso[:20*2048]} {
		if _, ok := artefact.UserData(b); ok {
			t.Errorf("%s has user data", name)
		}
	}
}
