package kube_test

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
)

func TestParseSelector(t *testing.T) {
	t.Parallel()
	has := map[string]string{"zone": "a", "tier": "web"}
	for text, want := range map[string]bool{
		"zone=a": true, "zone==a,tier!=db": true, "tier in (web, db)": true, "zone,!gpu": true,
		"zone=b": false, "gpu": false, "tier notin (web)": false,
	} {
		s, err := kube.ParseSelector(text)
		if err != nil || s.Text != text || s.Matches(has) != want {
			t.Errorf("%s: %v, want %v; %v", text, !want, want, err)
		}
	}
	for _, text := range []string{"", " ", "zone in a", "zone=a b", "a=b=c"} {
		if _, err := kube.ParseSelector(text); fault.KindOf(err) != fault.Config || !strings.HasPrefix(err.Error(), "selector ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
