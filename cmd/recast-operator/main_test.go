package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestNamespaces: without a word, the operator works in its own namespace, and nowhere if it knows of none.
func TestNamespaces(t *testing.T) {
	for own, c := range map[string]struct {
		args []string
		want []string
		says string
	}{
		"":         {nil, nil, "--namespaces, --all-namespaces or POD_NAMESPACE"},
		"platform": {nil, []string{"platform"}, ""},
		"listed":   {[]string{"--namespaces=a,b"}, []string{"a", "b"}, ""},
		"all":      {[]string{"--all-namespaces"}, nil, ""},
		"both":     {[]string{"--all-namespaces", "--namespaces=a"}, nil, "if any flags in the group [namespaces all-namespaces] are set"},
	} {
		t.Run(own, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", own)
			var f managerFlags
			cmd := newManagerCmd(&f)
			err := errors.Join(cmd.ParseFlags(append(c.args, "--job-image=recast")), cmd.ValidateFlagGroups(), f.check())
			if (err == nil) != (c.says == "") || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Fatalf("%v, want %q", err, c.says)
			}
			got := slices.Sorted(maps.Keys(f.options(runtime.NewScheme()).Cache.DefaultNamespaces))
			if err == nil && !slices.Equal(got, c.want) {
				t.Errorf("it watches %q, want %q", got, c.want)
			}
		})
	}
}
