package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// release is what the binary itself does not contain.
type release struct {
	version, date string
	sum           []byte // SHA-256 of the binary
}

// billOf lists what the linker recorded in a binary.
func billOf(info *debug.BuildInfo, r release) (*cdx.BOM, error) {
	main := cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: path.Base(info.Path), Version: r.version,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(r.sum)}},
		PackageURL: purl(info.Main.Path, r.version), Properties: built(info),
	}
	main.BOMRef = main.PackageURL
	parts := []cdx.Component{standardLibrary(info.GoVersion)}
	for _, m := range info.Deps {
		part, err := partOf(m)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	uses := make([]string, len(parts))
	for i, part := range parts {
		uses[i] = part.BOMRef
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = serial(r.sum)
	bom.Metadata = &cdx.Metadata{Timestamp: r.date, Component: &main}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &uses}}
	return bom, nil
}

// partOf is a module in a binary, or its replacement.
func partOf(m *debug.Module) (cdx.Component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version)}
	c.BOMRef = c.PackageURL
	sum, ok := strings.CutPrefix(m.Sum, "h1:")
	if !ok {
		return c, nil // a directory on the machine that built it
	}
	b, err := base64.StdEncoding.DecodeString(sum)
	if err != nil {
		return c, fmt.Errorf("hash of %s: %w", m.Path, err)
	}
	c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(b)}}
	return c, nil
}

// standardLibrary is Go's own, under the names that vulnerability databases use.
func standardLibrary(goVersion string) cdx.Component {
	version, _, _ := strings.Cut(strings.TrimPrefix(goVersion, "go"), " ") // " X:nodwarf5": experiments
	c := cdx.Component{
		Type: cdx.ComponentTypeLibrary, Name: "stdlib", Version: version,
		PackageURL: purl("stdlib", version), CPE: "cpe:2.3:a:golang:go:" + version + ":-:*:*:*:*:*:*",
	}
	c.BOMRef = c.PackageURL
	return c
}

// built are the settings that distinguish binaries: system, processor, flags.
func built(info *debug.BuildInfo) *[]cdx.Property {
	properties := []cdx.Property{{Name: "go:version", Value: info.GoVersion}}
	for _, s := range info.Settings {
		if s.Value != "" && s.Key != "-ldflags" {
			properties = append(properties, cdx.Property{Name: "go:build:" + s.Key, Value: s.Value})
		}
	}
	return &properties
}

// purl is a package URL. A plus sign in one would mean a space.
func purl(module, version string) string {
	if version == "" {
		return "pkg:golang/" + module
	}
	return "pkg:golang/" + module + "@" + url.QueryEscape(version)
}

// serial is a UUID (version 8) of the binary's hash.
func serial(sum []byte) string {
	id := [16]byte(sum)
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func sha256Of(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
