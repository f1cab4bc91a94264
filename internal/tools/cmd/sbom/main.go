// Command sbom writes the bill of materials of a Go binary as CycloneDX 1.6 in JSON: every
// module that the linker recorded, with its hash from go.sum, and the Go release.
//
//	sbom -version v1.2.3 -date 2026-01-02T03:04:05Z -output recast.cdx.json bin/recast
//
// The output is the same for the same binary.
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"os"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	var r release
	flags := flag.NewFlagSet("sbom", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&r.version, "version", "", "of the binary")
	flags.StringVar(&r.date, "date", "", "of the release, as in RFC 3339")
	output := flags.String("output", "", "`file` to write")
	if err := flags.Parse(args); err != nil {
		return 3
	}
	if flags.NArg() != 1 || *output == "" {
		fmt.Fprintln(stderr, "usage: sbom -version VERSION -date DATE -output FILE BINARY")
		return 3
	}
	if err := write(*output, flags.Arg(0), r); err != nil {
		fmt.Fprintf(stderr, "sbom: %v\n", err)
		return 1
	}
	return 0
}

func write(output, binary string, r release) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err // names the file
	}
	if r.sum, err = sha256Of(binary); err != nil {
		return err
	}
	bom, err := billOf(info, r)
	if err != nil {
		return fmt.Errorf("%s: %w", binary, err)
	}
	f, err := os.Create(output)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return f.Close()
}
