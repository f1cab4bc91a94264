package config

import "testing"

// TestRole: as Talos reads machine.type (config/machine, ParseType).
func TestRole(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		role     string
		typeInit bool
	}{
		"machine: {type: controlplane}":  {"control-plane", false},
		"machine: {type: init}":          {"control-plane", true},
		"machine: {type: worker}":        {"worker", false},
		"machine: {type: join}":          {"worker", false},
		"machine: {}":                    {"worker", false},
		"machine: {type: {}}":            {"worker", false},
		"kind: X\nmachine: {type: init}": {"worker", false},
	} {
		docs, err := Parse([]byte(text))
		if err != nil || docs.Role() != want.role || docs.TypeInit() != want.typeInit {
			t.Errorf("%q: %s, %v, %v", text, docs.Role(), docs.TypeInit(), err)
		}
	}
}
