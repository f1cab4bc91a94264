// Package tools has the scripts that make and .ci/run call, and the tests of them; its programs are in cmd.
package tools
