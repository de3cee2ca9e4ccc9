"""What several test files share: one module for each part of headgate that tests build, drive or replace."""
