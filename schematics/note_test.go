package schematics

import (
	"slices"
	"testing"
)

// TestResolveSaysWhatItWaitsFor: registries and factories may take minutes to answer.
func TestResolveSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	images := newShelf(catalog())
	putFRR("1.7", digestOf("frr"))(images)
	req := own(agent, Explicit{Repository: frr, Tag: "1.7"})
	req.Files["b"] = File{Path: "b.yaml", Data: []byte(agent)}
	var notes []string
	req.Note = func(text string) { notes = append(notes, text) }
	if _, _, err := Resolve(t.Context(), req, Sources{Catalog: catalog(), Images: images, Factory: &maker{extensions: catalog()}}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"the registry's list of official extensions for Talos v1.13.9",
		"the Image Factory's list of extensions for Talos v1.13.9",
		"extension " + agentRef + "@" + digestOf("qemu-guest-agent"),
		"the tag " + frr + ":1.7",
		"extension " + frr + "@" + digestOf("frr"),
	}
	if !slices.Equal(notes, want) {
		t.Errorf("notes\n got %q\nwant %q", notes, want)
	}
}

// resolve makes a lock without warnings.
func resolve(t *testing.T, req Request, known list) Lock {
	t.Helper()
	from := Sources{Catalog: known, Images: newShelf(known)}
	if req.SecureBoot {
		from.Factory = &maker{extensions: known, certificate: certificate("one")}
	}
	l, warnings, err := Resolve(t.Context(), req, from)
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	return l
}
