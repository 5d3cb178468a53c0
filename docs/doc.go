// Package docs holds the project's documents and the tests that keep them true:
// links lead somewhere, commands that are shown exist, and the command
// reference is what the binary's own help says.
package docs
