package simtest

import "testing"

// long leaves a test to make stories, so that make test stays quick.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}
