"""What a sequence leaves behind: attention keys and values in pages, recurrent states, and ways back for both."""
