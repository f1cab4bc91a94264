package terraform_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/recast-sh/recast/internal/terraform"
)

// FuzzRead: whatever is in a file, it is read or refused.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("../../pipeline/adopt/testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"format_version":"1.2","resource_changes":[{"address":"a","mode":"managed","type":"proxmox_vm_qemu","change":{"actions":["update"],"before":{"id":"p/qemu/1"},"after":{"disk":[{"slot":-1,"size":"T"}]},"after_unknown":{"disks":[true]},"replace_paths":[[],[1],"x"]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := terraform.Read("x.json", text)
		if err != nil {
			return
		}
		threats, err := d.Threats()
		if err != nil {
			return
		}
		for _, threat := range threats {
			if threat.Prevents() == "" || len(threat.Loses) == 0 {
				t.Errorf("%+v: nothing is lost, or nothing prevents it", threat)
			}
		}
	})
}
