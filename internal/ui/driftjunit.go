package ui

import (
	"encoding/xml"
	"io"
	"strings"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/pipeline"
)

// junitSuites is read by CI systems as test results: a node is a test case, which fails
// if the node is stale and has an error if it could not be read. Elements and attributes
// are those of the schema of Jenkins' reader; GitLab, GitHub actions and Azure DevOps read
// the ones that they know.
type junitSuites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Suites   []junitSuite
}

type junitSuite struct {
	XMLName  xml.Name `xml:"testsuite"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Time     string   `xml:"time,attr"`
	Cases    []junitCase
}

type junitCase struct {
	XMLName   xml.Name      `xml:"testcase"`
	Name      string        `xml:"name,attr"`
	Classname string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr"`
	Error     *junitProblem `xml:"error"`
	Failure   *junitProblem `xml:"failure"`
	Out       string        `xml:"system-out,omitempty"`
}

// junitProblem is why a case did not pass. Readers show the message in a list and the text
// below it; some read only the first problem of a case, so there is only one.
type junitProblem struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

func writeJUnit(w io.Writer, res pipeline.DriftResult) error {
	suite := junitSuite{Name: "recast drift " + res.Cluster, Tests: len(res.Nodes), Time: "0"}
	for _, d := range res.Nodes {
		c := junitOf(res.Cluster, d)
		switch {
		case c.Error != nil:
			suite.Errors++
		case c.Failure != nil:
			suite.Failures++
		}
		suite.Cases = append(suite.Cases, c)
	}
	if len(res.Held) > 0 {
		c := junitHeld(res)
		if suite.Tests++; c.Failure != nil {
			suite.Failures++
		}
		suite.Cases = append(suite.Cases, c)
	}
	all := junitSuites{Name: "recast drift", Tests: suite.Tests, Failures: suite.Failures, Errors: suite.Errors, Suites: []junitSuite{suite}}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, foreign.Lines(xml.Header+string(text)+"\n"))
	return err
}

// junitHeld is the test case of what storage systems are told, which fails if no run gives it back.
func junitHeld(res pipeline.DriftResult) junitCase {
	c := junitCase{Name: "held back", Classname: "recast.drift." + res.Cluster, Time: "0"}
	var lines []string
	for _, h := range res.Held {
		lines = append(lines, foreign.Line(heldText(h)))
	}
	if text := strings.Join(lines, "\n"); res.HeldLeft {
		c.Failure = &junitProblem{Message: lines[0], Type: "held-back", Text: text}
	} else {
		c.Out = text
	}
	return c
}

// junitOf converts a node to a test case.
func junitOf(name string, d observe.Drift) junitCase {
	c := junitCase{Name: d.Node, Classname: "recast.drift." + name, Time: "0"}
	var lines []string
	for _, u := range d.Unread {
		lines = append(lines, "unread: "+u)
	}
	for _, r := range d.Reasons {
		lines = append(lines, r.Code+": "+foreign.Line(r.Text))
	}
	text := strings.Join(lines, "\n")
	switch {
	case len(d.Unread) > 0:
		message, _, _ := strings.Cut(d.Unread[0], "\n")
		c.Error = &junitProblem{Message: message, Type: "unread", Text: text}
	case len(d.Reasons) > 0:
		c.Failure = &junitProblem{Message: foreign.Line(d.Reasons[0].Text), Type: d.Reasons[0].Code, Text: text}
	}
	c.Out = strings.Join(append([]string{driftOf(d).said()}, d.Notes...), "\n")
	return c
}
